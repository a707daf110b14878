#include "quant/columns4.h"

#include <array>

#include "dendrite/error.h"

namespace dendrite {

std::optional<Columns4> Columns4::of(const TensorSource& source, std::string_view name) {
  constexpr std::string_view kWeight = "weight";
  if (!name.ends_with(kWeight)) return std::nullopt;
  Columns4 out;
  out.base = name.substr(0, name.size() - kWeight.size());
  out.weight = source.find(out.base + "qweight");
  if (out.weight == nullptr) return std::nullopt;
  return out;
}

StoredMatrix Columns4::matrix(const TensorSource& source, const Format& format, const Format& zeros,
                              std::int64_t rows, std::int64_t cols) const {
  if (rows % 8 != 0) {
    throw Error(std::string(weight->file) + ": tensor \"" + weight->name + "\" is of " +
                std::to_string(rows) + " rows, expected a multiple of 8");
  }
  StoredMatrix matrix{.format = &format,
                      .data = weight->data,
                      .rows = rows,
                      .cols = cols,
                      .stride = 4 * weight->shape[1],  // of the transposed matrix
                      .name = weight->name,
                      .file = weight->file};
  matrix.scales = find_groups(source, base + "scales", cols, rows, *weight);
  const TensorInfo& stored =
      require_words(source, base + "qzeros", {matrix.scales.rows, rows / 8}, *weight);
  matrix.zeros = {&zeros, stored.data, matrix.scales.rows, rows};
  return matrix;
}

void ZerosAcross::widen(const StoredMatrix& zeros, std::int64_t row, std::int64_t begin,
                        std::span<float> out) const {
  const std::byte* const words = zeros.row(row);
  for (float& value : out) {
    const std::uint32_t word = word_at(words, begin / 8);
    value = static_cast<float>(nibble_of(word, order_[static_cast<std::size_t>(begin % 8)]) +
                               static_cast<std::uint32_t>(more_));
    ++begin;
  }
}

void GroupsOfRow::read(std::int64_t group) {
  group_ = group;
  matrix_.scales.widen(group, row_, {&scale_, 1});
  std::array<float, 8> zeros;
  matrix_.zeros.widen(group, row_ / 8 * 8, zeros);
  zero_ = zeros[static_cast<std::size_t>(row_ % 8)];
}

}  // namespace dendrite
