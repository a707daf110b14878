#include "quant/e4m3.h"

#include <algorithm>
#include <bit>

namespace dendrite {
namespace {

float power_of_two(int exponent) {
  return std::ldexp(1.0f, exponent);
}

}  // namespace

const std::array<float, 256>& e4m3_values() {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> out{};
    for (std::size_t code = 0; code < out.size(); ++code) {
      out[code] = e4m3_value(static_cast<std::uint8_t>(code));
    }
    return out;
  }();
  return values;
}

std::uint8_t e4m3_code(float value) {
  const auto sign = static_cast<std::uint32_t>(std::signbit(value) ? 128 : 0);
  const float magnitude = std::abs(value);
  const auto bits = std::bit_cast<std::uint32_t>(magnitude);
  std::uint32_t code = 127;
  if (magnitude < 0x1p-6f) {  // 2^14 has steps of 2^-9, those of subnormal codes
    code =
        std::bit_cast<std::uint32_t>(magnitude + 0x1p14f) - std::bit_cast<std::uint32_t>(0x1p14f);
  } else if (std::isfinite(magnitude)) {
    code = std::min(((bits + 0x7ffffu + (bits >> 20 & 1u)) >> 20) - (120u << 3), 126u);
  }
  return static_cast<std::uint8_t>(sign | code);
}

std::uint8_t e4m3_scale(std::span<const float> values) {
  float most = 0;
  for (const float value : values) {
    if (std::isfinite(value)) most = std::max(most, std::abs(value));
  }
  // The exponent of 1.8125 * 2^e and less is e: it is rounded to 1.75 * 2^e or less.
  const std::uint32_t exponent = (std::bit_cast<std::uint32_t>(most) + 0x17ffffu) >> 23;
  return static_cast<std::uint8_t>(
      std::clamp(static_cast<int>(exponent) - 8, kLeastE4m3Scale, kMostE4m3Scale));
}

std::uint8_t round_to_e4m3(std::span<const float> values, std::uint8_t* codes) {
  const std::uint8_t scale = e4m3_scale(values);
  const float inverse = power_of_two(127 - scale);
  for (const float value : values) *codes++ = e4m3_code(value * inverse);
  return scale;
}

void widen_e4m3(const std::uint8_t* codes, std::uint8_t scale, std::span<float> values) {
  const std::array<float, 256>& of_code = e4m3_values();
  const float factor = power_of_two(scale - 127);
  for (float& value : values) value = of_code[*codes++] * factor;
}

}  // namespace dendrite
