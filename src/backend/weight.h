#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "backend/rows.h"
#include "core/dtype.h"

namespace dendrite {

/// A host view of one stored matrix [rows, cols], row-major, dense; `data` may be unaligned.
/// `name` and `file` are for error messages only.
struct HostMatrix {
  const std::byte* data = nullptr;
  DType dtype = DType::kF32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::string name;
  std::string file;
};

/// A weight matrix [rows, cols] in a layout private to its backend: y = x * W^T.
class Weight {
 public:
  virtual ~Weight() = default;
  virtual std::int64_t rows() const = 0;
  virtual std::int64_t cols() const = 0;
  virtual DType dtype() const = 0;              // as stored on the device
  virtual std::int64_t size_bytes() const = 0;  // read once per matmul
  /// The rows that a product reads without a conversion of its own, in the memory of `scratch`
  /// [tokens, cols].
  virtual Rows input(Tensor scratch) const { return scratch; }
};

}  // namespace dendrite
