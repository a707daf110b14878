#include <array>
#include <cstring>

#include "quant/e4m3.h"
#include "quant/formats.h"
#include "quant/scales.h"

namespace dendrite {
namespace {

/// E4M3 with scales beside: one for all, one a row, or one for 128 × 128. As Hugging Face ("fp8"),
/// FBGEMM, compressed-tensors ("float-quantized") and Model Optimizer write it.
class Fp8Format final : public Format {
 public:
  Fp8Format() : Format("fp8", "F8_E4M3", 1, 1) {}

  std::optional<StoredMatrix> find(const TensorSource& source, std::string_view name,
                                   std::int64_t rows, std::int64_t cols) const override {
    auto matrix = Format::find(source, name, rows, cols);
    if (matrix) matrix->scales = find_scales(source, *matrix, {"_scale_inv", "_scale"});
    return matrix;
  }

  void widen(const StoredMatrix& matrix, std::int64_t row, std::int64_t begin,
             std::span<float> out) const override {
    const std::byte* from = matrix.row(row) + begin;
    for (float& value : out) value = values_[std::to_integer<std::size_t>(*from++)];
    apply_scales(matrix, row, begin, out);
  }

  std::optional<Groups> groups(const StoredMatrix& matrix) const override {
    if (matrix.cols % 32 != 0) return std::nullopt;
    const bool of_rows = matrix.scales.rows == matrix.rows && matrix.scales.cols == 1;
    return Groups{.codes = GroupCodes::kE4M3, .squares = !of_rows, .scales = GroupScales::kF32};
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

 private:
  const std::array<float, 256>& values_ = e4m3_values();
};

}  // namespace

const Format& fp8_format() {
  static const Fp8Format format;
  return format;
}

}  // namespace dendrite
