#pragma once

#include <array>
#include <cmath>
#include <cstdint>
#include <limits>
#include <span>

namespace dendrite {

inline constexpr float kMostE4M3 = 448;

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
const std::array<float, 256>& e4m3_values();

/// The code of the nearest value, ties to even; of 448 for what is larger. NaN for what is not
/// finite.
std::uint8_t e4m3_code(float value);

// A vector of codes with one power of two for all: value = e4m3_value(code) * 2^(scale - 127). So
// that it has E4M3's full precision whatever its size, and is exact in bf16.

/// Such that the largest of the finite magnitudes becomes 232 to 464. Kept in
/// [kLeastE4m3Scale, kMostE4m3Scale], where all values are normal in bf16.
std::uint8_t e4m3_scale(std::span<const float> values);
inline constexpr int kLeastE4m3Scale = 10;
inline constexpr int kMostE4m3Scale = 246;

/// Rounds `values` to codes and returns their scale, which nothing else decides. Values that came
/// from such codes give the same codes again.
std::uint8_t round_to_e4m3(std::span<const float> values, std::uint8_t* codes);
void widen_e4m3(const std::uint8_t* codes, std::uint8_t scale, std::span<float> values);

}  // namespace dendrite
