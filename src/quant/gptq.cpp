#include <array>

#include "dendrite/error.h"
#include "quant/columns4.h"
#include "quant/formats.h"

namespace dendrite {
namespace {

/// Four bits a value, transposed, eight columns in a word, zero points one below what they mean.
/// Source: Frantar et al. 2022, arXiv:2210.17323; its first layout.
class GptqFormat final : public Format {
 public:
  GptqFormat() : Format("gptq", "I32", 1, 4), zeros_(kInOrder, 1) {}

  std::optional<StoredMatrix> find(const TensorSource& source, std::string_view name,
                                   std::int64_t rows, std::int64_t cols) const override {
    const auto parts = Columns4::of(source, name);
    if (!parts) return std::nullopt;
    if (cols % 8 != 0) {
      throw Error(std::string(parts->weight->file) + ": tensor \"" + parts->weight->name +
                  "\" is of rows of " + std::to_string(cols) + " values, expected a multiple of 8");
    }
    require_words(source, parts->weight->name, {cols / 8, rows}, *parts->weight);
    StoredMatrix matrix = parts->matrix(source, *this, zeros_, rows, cols);
    find_order(source, *parts, matrix);
    return matrix;
  }

  void widen(const StoredMatrix& matrix, std::int64_t row, std::int64_t begin,
             std::span<float> out) const override {
    const std::int64_t size = matrix.cols / matrix.scales.rows;
    GroupsOfRow groups(matrix, row);
    for (float& value : out) {
      const std::int64_t group = matrix.groups == nullptr ? begin / size : group_of(matrix, begin);
      const std::uint32_t word = word_at(matrix.row(begin / 8), row);
      value = groups.value(nibble_of(word, begin % 8), group);
      ++begin;
    }
  }

  /// With StoredMatrix::groups, of columns in the order of their groups.
  std::optional<Groups> groups(const StoredMatrix& matrix) const override {
    return groups_of_fours(matrix, matrix.cols / matrix.scales.rows, 0);
  }
  /// With StoredMatrix::groups, codes of columns in their own order, and scales in that of groups.
  void read_groups(const StoredMatrix& matrix, std::int64_t row, std::int64_t begin,
                   std::int64_t count, GroupedValues& out) const override {
    const std::int64_t size = matrix.cols / matrix.scales.rows;
    GroupsOfRow groups(matrix, row);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint32_t nibble =
          nibble_of(word_at(matrix.row((begin + i) / 8), row), (begin + i) % 8);
      out.codes[static_cast<std::size_t>(i)] = static_cast<std::int8_t>(nibble);
      if (i % 32 != 0) continue;
      const auto group = static_cast<std::size_t>(i / 32);
      groups.read((begin + i) / size, out.scales[group], out.minimums[group]);
    }
  }

 private:
  static std::int64_t group_of(const StoredMatrix& matrix, std::int64_t column) {
    return static_cast<std::int32_t>(word_at(matrix.groups, column));
  }

  /// Columns may be grouped in another order than theirs (desc_act).
  static void find_order(const TensorSource& source, const Columns4& parts, StoredMatrix& matrix) {
    const TensorInfo* const order = source.find(parts.base + "g_idx");
    if (order == nullptr) return;
    const auto fail = [&](const std::string& what) {
      throw Error(std::string(order->file) + ": tensor \"" + order->name + "\" " + what);
    };
    const std::int64_t shape[] = {matrix.cols};
    check_shape(*order, shape, "of \"" + parts.weight->name + "\"");
    if (order->stored_type != "I32" || order->size_bytes != 4 * matrix.cols) {
      fail("is " + std::to_string(order->size_bytes) + " bytes of " +
           std::string(order->stored_type) + ", expected " + std::to_string(4 * matrix.cols) +
           " of I32");
    }
    matrix.groups = order->data;
    const std::int64_t size = matrix.cols / matrix.scales.rows;
    bool neighbours = true;
    for (std::int64_t k = 0; k < matrix.cols; ++k) {
      const std::int64_t group = group_of(matrix, k);
      neighbours = neighbours && group == k / size;
      if (group >= 0 && group < matrix.scales.rows) continue;
      fail("says that column " + std::to_string(k) + " is of group " + std::to_string(group) +
           ", expected 0 to " + std::to_string(matrix.scales.rows - 1));
    }
    if (neighbours) matrix.groups = nullptr;  // many files say so
  }

  const ZerosAcross zeros_;
};

}  // namespace

const Format& gptq_format() {
  static const GptqFormat format;
  return format;
}

}  // namespace dendrite
