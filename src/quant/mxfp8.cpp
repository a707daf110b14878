#include "quant/e4m3.h"
#include "quant/formats.h"
#include "quant/small_floats.h"

#include <array>
#include <cstring>

namespace dendrite {
namespace {

/// E4M3 times the power of two of its 32 values, as OCP Microscaling Formats 1.0 has it. As Model
/// Optimizer and compressed-tensors ("mxfp8-quantized") write it; scales of another type are fp8's.
class Mxfp8Format final : public Format {
 public:
  Mxfp8Format() : Format("mxfp8", "F8_E4M3", 32, 32) {}

  std::optional<StoredMatrix> find(const TensorSource& source, std::string_view name,
                                   std::int64_t rows, std::int64_t cols) const override {
    const TensorInfo* const scales = source.find(std::string(name) + "_scale");
    if (scales == nullptr || !is_e8m0(*scales)) return std::nullopt;
    auto matrix = Format::find(source, name, rows, cols);
    if (!matrix) return matrix;
    check_shape(*scales, std::array{rows, cols / 32}, "of \"" + std::string(name) + "\"");
    check_bytes(*scales, rows * cols / 32);
    matrix->scales = {&e8m0_scales(), scales->data, rows, cols / 32};
    return matrix;
  }

  void widen(const StoredMatrix& matrix, std::int64_t row, std::int64_t begin,
             std::span<float> out) const override {
    const std::byte* from = matrix.row(row) + begin;
    for (std::size_t i = 0; i < out.size(); i += 32, begin += 32) {
      float scale = 0;
      matrix.scales.widen(row, begin / 32, {&scale, 1});
      for (float& value : out.subspan(i, 32)) {
        value = values_[std::to_integer<std::size_t>(*from++)] * scale;
      }
    }
  }

  std::optional<Groups> groups(const StoredMatrix&) const override {
    return Groups{.codes = GroupCodes::kE4M3, .scales = GroupScales::kPowers};
  }
  void read_groups(const StoredMatrix& matrix, std::int64_t row, std::int64_t begin,
                   std::int64_t count, GroupedValues& out) const override {
    std::memcpy(out.codes.data(), matrix.row(row) + begin, static_cast<std::size_t>(count));
    matrix.scales.widen(row, begin / 32,
                        std::span(out.scales).first(static_cast<std::size_t>(count / 32)));
  }

 private:
  const std::array<float, 256>& values_ = e4m3_values();
};

}  // namespace

const Format& mxfp8_format() {
  static const Mxfp8Format format;
  return format;
}

}  // namespace dendrite
