#pragma once

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

}  // namespace dendrite
