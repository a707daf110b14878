#pragma once

#include <cstdint>

#include "backend/tensor.h"
#include "dendrite/error.h"

namespace dendrite {

/// How the values of a row are kept between two ops.
enum class RowFormat : std::uint8_t { kF32, kBF16 };

/// Rows [rows, cols] of device memory in the format that a product reads them in, `ld` values from
/// row to row. Whoever writes them rounds once. From cols to ld: of bf16 rows zeros, of f32 rows
/// nothing defined.
struct Rows {
  void* data = nullptr;
  RowFormat format = RowFormat::kF32;
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::int64_t ld = 0;

  Rows() = default;
  Rows(void* memory, RowFormat kept_as, std::int64_t count, std::int64_t columns,
       std::int64_t to_next)
      : data(memory), format(kept_as), rows(count), cols(columns), ld(to_next) {}
  /// A tensor is rows of f32.
  Rows(const Tensor& tensor)  // NOLINT(google-explicit-constructor)
      : Rows(tensor.data, RowFormat::kF32, tensor.rows, tensor.cols, tensor.stride) {}
  /// Rows of f32 are a tensor; others are an Error.
  Tensor tensor() const {
    if (format != RowFormat::kF32) throw Error("rows are bf16; expected f32");
    return {static_cast<float*>(data), rows, cols, ld};
  }
};

}  // namespace dendrite
