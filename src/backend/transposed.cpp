#include "backend/transposed.h"

#include <algorithm>
#include <cstdint>

#include "core/dtype.h"
#include "quant/formats.h"

namespace dendrite {
namespace {

constexpr std::int64_t kTile = 32;  // of both, which stay in a cache

}  // namespace

TransposedMatrix::TransposedMatrix(const StoredMatrix& matrix) : matrix_(matrix) {
  const auto number = matrix.format->number();
  if (!number) {
    widen(matrix);
    return;
  }
  const auto bytes = static_cast<std::int64_t>(size_of(*number));
  matrix_.rows = matrix.cols;
  matrix_.cols = matrix.rows;
  matrix_.stride = matrix_.cols * bytes;
  bytes_.resize(static_cast<std::size_t>(matrix_.rows * matrix_.stride));
  matrix_.data = bytes_.data();
  for (std::int64_t first = 0; first < matrix.rows; first += kTile) {
    const std::int64_t end = std::min(matrix.rows, first + kTile);
    for (std::int64_t column = 0; column < matrix.cols; ++column) {
      std::byte* const to = bytes_.data() + column * matrix_.stride;
      for (std::int64_t row = first; row < end; ++row) {
        std::copy_n(matrix.row(row) + column * bytes, bytes, to + row * bytes);
      }
    }
  }
}

void TransposedMatrix::widen(const StoredMatrix& matrix) {
  std::vector<float> row(static_cast<std::size_t>(matrix.cols));
  bytes_.resize(static_cast<std::size_t>(matrix.rows * matrix.cols * 4));
  auto* const to = reinterpret_cast<float*>(bytes_.data());
  for (std::int64_t i = 0; i < matrix.rows; ++i) {
    matrix.format->widen(matrix, i, 0, row);
    for (std::int64_t j = 0; j < matrix.cols; ++j) {
      to[j * matrix.rows + i] = row[static_cast<std::size_t>(j)];
    }
  }
  matrix_ = {.format = &f32_format(),
             .data = bytes_.data(),
             .rows = matrix.cols,
             .cols = matrix.rows,
             .stride = matrix.rows * 4,
             .name = matrix.name,
             .file = matrix.file};
}

}  // namespace dendrite
