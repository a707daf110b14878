#include <array>

#include "quant/columns4.h"
#include "quant/formats.h"

namespace dendrite {
namespace {

/// Four bits a value, transposed, eight rows in a word in an order of their own, with zero points.
/// Source: Lin et al. 2023, arXiv:2306.00978; layout "gemm".
class AwqFormat final : public Format {
 public:
  AwqFormat() : Format("awq", "I32", 1, 4), zeros_(kAwqOrder, 0) {}

  std::optional<StoredMatrix> find(const TensorSource& source, std::string_view name,
                                   std::int64_t rows, std::int64_t cols) const override {
    const auto parts = Columns4::of(source, name);
    // (GPTQ's has an eighth of the rows.)
    const bool mine = parts && parts->weight->shape.size() == 2 && parts->weight->shape[0] == cols;
    if (!mine) return std::nullopt;
    require_words(source, parts->weight->name, {cols, rows / 8}, *parts->weight);
    return parts->matrix(source, *this, zeros_, rows, cols);
  }

  void widen(const StoredMatrix& matrix, std::int64_t row, std::int64_t begin,
             std::span<float> out) const override {
    const std::int64_t group = matrix.cols / matrix.scales.rows;
    const std::int64_t place = kAwqOrder[static_cast<std::size_t>(row % 8)];
    GroupsOfRow groups(matrix, row);
    for (float& value : out) {
      const std::uint32_t word = word_at(matrix.row(begin), row / 8);
      value = groups.value(nibble_of(word, place), begin / group);
      ++begin;
    }
  }

  std::optional<Groups> groups(const StoredMatrix& matrix) const override {
    return groups_of_fours(matrix, matrix.cols / matrix.scales.rows, 0);
  }
  void read_groups(const StoredMatrix& matrix, std::int64_t row, std::int64_t begin,
                   std::int64_t count, GroupedValues& out) const override {
    const std::int64_t size = matrix.cols / matrix.scales.rows;
    const std::int64_t place = kAwqOrder[static_cast<std::size_t>(row % 8)];
    GroupsOfRow groups(matrix, row);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint32_t nibble = nibble_of(word_at(matrix.row(begin + i), row / 8), place);
      out.codes[static_cast<std::size_t>(i)] = static_cast<std::int8_t>(nibble);
      if (i % 32 != 0) continue;
      const auto group = static_cast<std::size_t>(i / 32);
      groups.read((begin + i) / size, out.scales[group], out.minimums[group]);
    }
  }

 private:
  const ZerosAcross zeros_;
};

}  // namespace

const Format& awq_format() {
  static const AwqFormat format;
  return format;
}

}  // namespace dendrite
