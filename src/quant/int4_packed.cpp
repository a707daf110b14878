#include "dendrite/error.h"
#include "quant/formats.h"
#include "quant/nibbles.h"

namespace dendrite {
namespace {

/// Four bits of a zero point, eight rows in a word.
class ZerosDown final : public Format {
 public:
  ZerosDown() : Format("int4 zeros", "I32", 1, 4) {}
  void widen(const StoredMatrix& zeros, std::int64_t row, std::int64_t begin,
             std::span<float> out) const override {
    for (float& value : out) {
      const std::uint32_t word = word_at(zeros.data, row / 8 * zeros.cols + begin++);
      value = static_cast<float>(nibble_of(word, row % 8)) - 8;
    }
  }
};

/// Four bits a value along rows, 8 above the number, with a scale for each group of a row, and
/// perhaps a zero point. As compressed-tensors writes them ("pack-quantized").
class Int4PackedFormat final : public Format {
 public:
  Int4PackedFormat() : Format("int4", "I32", 8, 4) {}

  std::optional<StoredMatrix> find(const TensorSource& source, std::string_view name,
                                   std::int64_t rows, std::int64_t cols) const override {
    const std::string base(name);
    const TensorInfo* const tensor = source.find(base + "_packed");
    if (tensor == nullptr) return std::nullopt;
    if (cols % 8 != 0) {
      throw Error(std::string(tensor->file) + ": tensor \"" + tensor->name + "\" is of rows of " +
                  std::to_string(cols) + " values, expected a multiple of 8");
    }
    if (source.find(base + "_g_idx") != nullptr) {
      throw Error(std::string(tensor->file) + ": tensor \"" + base +
                  "_g_idx\" is not supported; expected groups of neighbours");
    }
    require_words(source, tensor->name, {rows, cols / 8}, *tensor);
    StoredMatrix matrix{.format = this,
                        .data = tensor->data,
                        .rows = rows,
                        .cols = cols,
                        .stride = cols / 2,
                        .name = tensor->name,
                        .file = tensor->file};
    const TensorInfo* const scale = source.find(base + "_scale");
    const std::int64_t groups = scale != nullptr && scale->shape.size() == 2 ? scale->shape[1] : 1;
    matrix.scales = find_groups(source, base + "_scale", rows, groups, *tensor);
    const bool fits =
        matrix.scales.rows == rows && groups > 0 && cols % groups == 0 && cols / groups % 8 == 0;
    if (!fits) {
      throw Error(std::string(scale->file) + ": tensor \"" + scale->name + "\" has shape " +
                  shape_text(scale->shape) + ", expected [" + std::to_string(rows) +
                  ", groups], whole words in each group (of \"" + tensor->name + "\")");
    }
    if (source.find(base + "_zero_point") != nullptr) {
      const TensorInfo& zeros =
          require_words(source, base + "_zero_point", {(rows + 7) / 8, groups}, *tensor);
      matrix.zeros = {&zeros_, zeros.data, rows, groups};
    }
    return matrix;
  }

  void widen(const StoredMatrix& matrix, std::int64_t row, std::int64_t begin,
             std::span<float> out) const override {
    const std::byte* const words = matrix.row(row);
    const std::int64_t group = matrix.cols / matrix.scales.cols;
    float scale = 0;
    float zero = 0;
    for (std::size_t i = 0; i < out.size(); ++i) {
      const std::int64_t k = begin + static_cast<std::int64_t>(i);
      if (i == 0 || k % group == 0) {
        matrix.scales.widen(row, k / group, {&scale, 1});
        if (matrix.zeros.format != nullptr) matrix.zeros.widen(row, k / group, {&zero, 1});
      }
      const auto number = static_cast<float>(nibble_of(word_at(words, k / 8), k % 8)) - 8;
      out[i] = (number - zero) * scale;
    }
  }

  std::optional<Groups> groups(const StoredMatrix& matrix) const override {
    return groups_of_fours(matrix, matrix.cols / matrix.scales.cols, -8);
  }
  void read_groups(const StoredMatrix& matrix, std::int64_t row, std::int64_t begin,
                   std::int64_t count, GroupedValues& out) const override {
    const std::byte* const words = matrix.row(row);
    for (std::int64_t i = 0; i < count; ++i) {
      const std::uint32_t nibble = nibble_of(word_at(words, (begin + i) / 8), (begin + i) % 8);
      out.codes[static_cast<std::size_t>(i)] =
          static_cast<std::int8_t>(static_cast<int>(nibble) - 8);
    }
    const std::int64_t size = matrix.cols / matrix.scales.cols;
    for (std::int64_t i = 0; i < count; i += 32) {
      const std::int64_t group = (begin + i) / size;
      float& scale = out.scales[static_cast<std::size_t>(i / 32)];
      matrix.scales.widen(row, group, {&scale, 1});
      if (matrix.zeros.format == nullptr) continue;
      float zero = 0;
      matrix.zeros.widen(row, group, {&zero, 1});
      out.minimums[static_cast<std::size_t>(i / 32)] = scale * zero;
    }
  }

 private:
  const ZerosDown zeros_;
};

}  // namespace

const Format& int4_packed_format() {
  static const Int4PackedFormat format;
  return format;
}

}  // namespace dendrite
