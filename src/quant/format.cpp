#include "quant/format.h"

#include <algorithm>
#include <array>
#include <functional>
#include <numeric>

#include "dendrite/error.h"
#include "quant/formats.h"

namespace dendrite {
namespace {

[[noreturn]] void fail(const TensorInfo& tensor, const std::string& what) {
  throw Error(std::string(tensor.file) + ": tensor \"" + tensor.name + "\" " + what);
}

}  // namespace

std::int64_t value_count(std::span<const std::int64_t> shape) {
  return std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
}

std::string shape_text(std::span<const std::int64_t> shape) {
  std::string out = "[";
  for (std::size_t i = 0; i < shape.size(); ++i) {
    out += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  }
  return out + "]";
}

void check_shape(const TensorInfo& tensor, std::span<const std::int64_t> shape,
                 const std::string& reason) {
  if (std::ranges::equal(tensor.shape, shape)) return;
  fail(tensor, "has shape " + shape_text(tensor.shape) + ", expected " + shape_text(shape) + " (" +
                   reason + ")");
}

void check_bytes(const TensorInfo& tensor, std::int64_t bytes) {
  if (tensor.size_bytes == bytes) return;
  fail(tensor,
       "has " + std::to_string(tensor.size_bytes) + " bytes, expected " + std::to_string(bytes));
}

void Companion::widen(std::int64_t row, std::int64_t begin, std::span<float> out) const {
  const StoredMatrix numbers{.format = format,
                             .data = data,
                             .rows = rows,
                             .cols = cols,
                             .stride = cols / format->block() * format->block_bytes()};
  format->widen(numbers, row, begin, out);
}

std::optional<StoredMatrix> Format::find(const TensorSource& source, std::string_view name,
                                         std::int64_t rows, std::int64_t cols) const {
  const TensorInfo* const tensor = source.find(name);
  if (tensor == nullptr || tensor->stored_type != stored_type_) return std::nullopt;
  return matrix_of(*tensor, rows, cols);
}

StoredMatrix Format::matrix_of(const TensorInfo& tensor, std::int64_t rows,
                               std::int64_t cols) const {
  check_shape(tensor, std::array{rows, cols});
  if (cols % block_ != 0) {
    fail(tensor, "has rows of " + std::to_string(cols) + " values, expected a multiple of " +
                     std::to_string(block_) + ", the block of " + std::string(name_));
  }
  const std::int64_t stride = cols / block_ * block_bytes_;
  if (tensor.size_bytes != rows * stride) {
    fail(tensor, "has " + std::to_string(tensor.size_bytes) + " bytes, expected " +
                     std::to_string(rows * stride) + " of shape " + shape_text(tensor.shape));
  }
  return {.format = this,
          .data = tensor.data,
          .rows = rows,
          .cols = cols,
          .stride = stride,
          .name = tensor.name,
          .file = tensor.file};
}

Companion Format::companion_of(const TensorSource& source, const StoredMatrix& matrix,
                               std::string_view suffix, std::int64_t rows, std::int64_t cols) {
  const std::string name = std::string(matrix.name) + std::string(suffix);
  const TensorInfo* const tensor = source.find(name);
  if (tensor == nullptr) {
    throw Error(std::string(matrix.file) + ": holds no tensor \"" + name + "\", which \"" +
                std::string(matrix.name) + "\" as " + std::string(matrix.format->name()) +
                " does not go without");
  }
  check_shape(*tensor, std::array{rows, cols},
              "of \"" + std::string(matrix.name) + "\" " +
                  shape_text(std::array{matrix.rows, matrix.cols}));
  const Format& format = require_plain(*tensor);
  check_bytes(*tensor, rows * cols * format.block_bytes());
  return {&format, tensor->data, rows, cols};
}

}  // namespace dendrite
