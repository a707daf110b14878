#pragma once

#include <cstdint>

namespace dendrite {

/// Device memory of f32 values, row-major [rows, cols] with `stride` values from row to row.
/// Only a backend may dereference `data`.
struct Tensor {
  float* data = nullptr;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t stride = 0;

  /// Columns [begin, begin + count) of every row.
  Tensor columns(std::int64_t begin, std::int64_t count) const {
    return {data + begin, rows, count, stride};
  }
  Tensor columns_from(std::int64_t begin) const { return columns(begin, cols - begin); }
  /// The first `count` rows.
  Tensor first_rows(std::int64_t count) const { return {data, count, cols, stride}; }
};

/// Device memory, freed with the object.
class Buffer {
 public:
  virtual ~Buffer() = default;
  virtual float* data() = 0;
  virtual std::int64_t count() const = 0;  // f32 values
};

}  // namespace dendrite
