#pragma once

#include <cstdint>

#include "backend/rows.h"

namespace dendrite {

/// A weight matrix [rows, cols] in a layout private to its backend: y = x * W^T.
class Weight {
 public:
  virtual ~Weight() = default;
  virtual std::int64_t rows() const = 0;
  virtual std::int64_t cols() const = 0;
  virtual std::int64_t size_bytes() const = 0;  // on the device; read once per matmul
  /// The rows that a product reads without a conversion of its own, in the memory of `scratch`
  /// [tokens, cols].
  virtual Rows input(Tensor scratch) const { return scratch; }
};

}  // namespace dendrite
