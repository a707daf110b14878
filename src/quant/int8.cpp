#include <cstring>
#include <string>

#include "dendrite/error.h"
#include "quant/formats.h"
#include "quant/scales.h"

namespace dendrite {
namespace {

/// Signed bytes with scales beside: one for all or one a row. As compressed-tensors writes them
/// ("int-quantized").
class Int8Format final : public Format {
 public:
  Int8Format() : Format("int8", "I8", 1, 1) {}

  std::optional<StoredMatrix> find(const TensorSource& source, std::string_view name,
                                   std::int64_t rows, std::int64_t cols) const override {
    auto matrix = Format::find(source, name, rows, cols);
    if (!matrix) return matrix;
    const std::string zeros = std::string(name) + "_zero_point";
    if (source.find(zeros) != nullptr) {
      throw Error(std::string(matrix->file) + ": tensor \"" + zeros +
                  "\" is not supported; expected int8 weights without zero points");
    }
    matrix->scales = find_scales(source, *matrix, {"_scale"});
    return matrix;
  }

  void widen(const StoredMatrix& matrix, std::int64_t row, std::int64_t begin,
             std::span<float> out) const override {
    const auto* from = reinterpret_cast<const std::int8_t*>(matrix.row(row)) + begin;
    for (float& value : out) value = static_cast<float>(*from++);
    apply_scales(matrix, row, begin, out);
  }

  std::optional<Groups> groups(const StoredMatrix& matrix) const override {
    if (matrix.cols % 32 != 0) return std::nullopt;
    return Groups{.scales = GroupScales::kF32};
  }
  void read_groups(const StoredMatrix& matrix, std::int64_t row, std::int64_t begin,
                   std::int64_t count, GroupedValues& out) const override {
    std::memcpy(out.codes.data(), matrix.row(row) + begin, static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; i += 32) {
      float& scale = out.scales[static_cast<std::size_t>(i / 32)];
      scale = 1;
      apply_scales(matrix, row, begin + i, {&scale, 1});
    }
  }
};

}  // namespace

const Format& int8_format() {
  static const Int8Format format;
  return format;
}

}  // namespace dendrite
