#pragma once

#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace dendrite {

/// The value of a code of E4M3 (bias 7, no infinity, one NaN a sign). Source: Micikevicius et al.
/// 2022, arXiv:2209.05433.
inline float e4m3_value(std::uint8_t code) {
  const int exponent = code >> 3 & 15;
  const int mantissa = code & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
  const float value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -9)
                                    : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return code < 128 ? value : -value;
}

/// The values of all codes.
inline const std::array<float, 256>& e4m3_values() {
  static const std::array<float, 256> values = [] {
    std::array<float, 256> out{};
    for (std::size_t code = 0; code < out.size(); ++code) {
      out[code] = e4m3_value(static_cast<std::uint8_t>(code));
    }
    return out;
  }();
  return values;
}

inline constexpr float kMostE4M3 = 448;

/// The code of the nearest value (ties to even); of what is larger than the largest, that one's.
inline std::uint8_t e4m3_code(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const auto sign = static_cast<std::uint8_t>(bits >> 24 & 0x80U);
  const float magnitude = std::abs(value);
  if (std::isnan(value)) return sign | 0x7fU;
  if (magnitude >= kMostE4M3) return sign | 0x7eU;
  if (magnitude < 0x1p-6F) {  // multiples of 2^-9: an addition rounds there
    const float rounded = magnitude + 0x1.8p14F;
    return static_cast<std::uint8_t>(sign | (std::bit_cast<std::uint32_t>(rounded) & 0xffU));
  }
  const std::uint32_t odd = bits >> 20 & 1U;
  const std::uint32_t rounded = (bits & 0x7fffffffU) + 0x7ffffU + odd;
  return static_cast<std::uint8_t>(sign | ((rounded >> 20) - (120U << 3)));
}

}  // namespace dendrite
