#include "quant/rounded.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "quant/formats.h"

namespace dendrite {
namespace {

constexpr std::int64_t kGroup = 32;
constexpr float kLeastScale = 0x1p-20F;  // with it f16 has all minimums

float as_half(float value) {
  return to_f32(to_f16(value));
}
float as_bf16(float value) {
  return to_f32(to_bf16(value));
}

/// Round to nearest: scales are as exact as f16 is, those of four bits as bf16 is, and codes are
/// made for those.
class RoundedFormat final : public Format {
 public:
  RoundedFormat(const PlainFormat& plain, WeightRounding rounding)
      : Format(rounding == WeightRounding::kInt8 ? "int8 of 32" : "int4 of 32", plain.stored_type(),
               kGroup, kGroup * plain.block_bytes()),
        plain_(plain),
        groups_(rounding == WeightRounding::kInt8
                    ? Groups{}
                    : Groups{.bits = 4, .lowest = 0, .minimums = true, .raised = true}) {}

  void widen(const StoredMatrix& matrix, std::int64_t row, std::int64_t begin,
             std::span<float> out) const override {
    plain_.widen(matrix, row, begin, out);
    GroupedValues values;
    for (std::size_t i = 0; i < out.size(); i += kGroup) {
      const auto group = out.subspan(i, kGroup);
      if (!round(group, values, 0)) continue;  // for who looks for what is not finite
      for (std::size_t k = 0; k < kGroup; ++k) {
        group[k] = values.value(groups_, static_cast<std::int64_t>(k));
      }
    }
  }

  std::optional<Groups> groups(const StoredMatrix&) const override { return groups_; }

  void read_groups(const StoredMatrix& matrix, std::int64_t row, std::int64_t begin,
                   std::int64_t count, GroupedValues& out) const override {
    std::array<float, GroupedValues::kMost> values;
    const auto some = std::span(values).first(static_cast<std::size_t>(count));
    plain_.widen(matrix, row, begin, some);
    for (std::size_t i = 0; i < some.size(); i += kGroup) {
      round(some.subspan(i, kGroup), out, i / kGroup);
    }
  }

 private:
  /// Whether all of them are finite; else the scale is not.
  bool round(std::span<const float> values, GroupedValues& out, std::size_t group) const {
    const auto [least, most] = std::ranges::minmax(values);
    const bool finite =
        std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
    float scale = 0;
    float minimum = 0;
    if (groups_.minimums) {
      // With 0 in the range an offset is 16 to 31 scales, so that f16 has what is left of it.
      const float low = std::min(least, 0.0F);
      scale = std::max(as_bf16(as_half((std::max(most, 0.0F) - low) / 15)), kLeastScale);
      minimum = -(as_bf16(low - 16 * scale) + 16 * scale);
    } else {
      scale = as_half(std::max(most, -least) / 127);
    }
    out.scales[group] = finite ? scale : std::numeric_limits<float>::quiet_NaN();
    out.minimums[group] = minimum;
    const float inverse = scale > 0 ? 1 / scale : 0;
    const auto [lowest, highest] =
        groups_.minimums ? std::pair(0.0F, 15.0F) : std::pair(-127.0F, 127.0F);
    for (std::size_t i = 0; i < values.size(); ++i) {
      const float code = std::nearbyint((values[i] + minimum) * inverse);
      out.codes[group * kGroup + i] =
          finite ? static_cast<std::int8_t>(std::clamp(code, lowest, highest)) : std::int8_t{0};
    }
    return finite;
  }

  const PlainFormat& plain_;
  const Groups groups_;
};

}  // namespace

const Format& rounded_format(DType plain, WeightRounding rounding) {
  static const RoundedFormat formats[3][2] = {
      {{f32_format(), WeightRounding::kInt8}, {f32_format(), WeightRounding::kInt4}},
      {{f16_format(), WeightRounding::kInt8}, {f16_format(), WeightRounding::kInt4}},
      {{bf16_format(), WeightRounding::kInt8}, {bf16_format(), WeightRounding::kInt4}}};
  const std::size_t number = plain == DType::kF32 ? 0 : plain == DType::kF16 ? 1 : 2;
  return formats[number][rounding == WeightRounding::kInt8 ? 0 : 1];
}

}  // namespace dendrite
