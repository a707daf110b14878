#include "quant/scales.h"

#include <algorithm>
#include <string>

#include "dendrite/error.h"
#include "quant/formats.h"
#include "quant/small_floats.h"

namespace dendrite {
namespace {

/// Rows and columns that share a scale, where neither a row nor the matrix has one of its own.
constexpr std::int64_t kBlock = 128;

std::int64_t blocks(std::int64_t values) {
  return (values + kBlock - 1) / kBlock;
}

}  // namespace

Companion find_scales(const TensorSource& source, const StoredMatrix& matrix,
                      std::initializer_list<std::string_view> suffixes) {
  const TensorInfo* tensor = nullptr;
  std::string names;
  for (const std::string_view suffix : suffixes) {
    const std::string name = std::string(matrix.name) + std::string(suffix);
    names += (names.empty() ? "\"" : " or \"") + name + "\"";
    if (tensor == nullptr) tensor = source.find(name);
  }
  if (tensor == nullptr) {
    throw Error(std::string(matrix.file) + ": holds no tensor " + names + ", which \"" +
                std::string(matrix.name) + "\" as " + std::string(matrix.format->name()) +
                " does not go without");
  }
  const std::vector<std::int64_t>& shape = tensor->shape;
  const auto is = [&shape](std::initializer_list<std::int64_t> expected) {
    return std::ranges::equal(shape, expected);
  };
  const bool powers = tensor->stored_type == "F8_E8M0";
  Companion scales{.format = powers ? &e8m0_scales() : &require_plain(*tensor),
                   .data = tensor->data};
  if (is({}) || is({1}) || is({1, 1})) {
    scales.rows = scales.cols = 1;
  } else if (is({matrix.rows}) || is({matrix.rows, 1})) {
    scales.rows = matrix.rows;
    scales.cols = 1;
  } else if (is({blocks(matrix.rows), blocks(matrix.cols)})) {
    scales.rows = blocks(matrix.rows);
    scales.cols = blocks(matrix.cols);
  } else {
    throw Error(std::string(tensor->file) + ": tensor \"" + tensor->name + "\" has shape " +
                shape_text(shape) + ", expected one number, [" + std::to_string(matrix.rows) +
                ", 1] or [" + std::to_string(blocks(matrix.rows)) + ", " +
                std::to_string(blocks(matrix.cols)) + "] (of \"" + std::string(matrix.name) +
                "\")");
  }
  check_bytes(*tensor, scales.rows * scales.cols * scales.format->block_bytes());
  return scales;
}

void apply_scales(const StoredMatrix& matrix, std::int64_t row, std::int64_t begin,
                  std::span<float> values) {
  const Companion& scales = matrix.scales;
  const bool in_blocks = scales.cols > 1 || (scales.rows > 1 && scales.rows < matrix.rows);
  const std::int64_t place = in_blocks ? row / kBlock : std::min(row, scales.rows - 1);
  float scale = 0;
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::int64_t k = begin + static_cast<std::int64_t>(i);
    if (i == 0 || (in_blocks && k % kBlock == 0)) {
      scales.widen(place, in_blocks ? k / kBlock : 0, {&scale, 1});
    }
    values[i] *= scale;
  }
}

}  // namespace dendrite
