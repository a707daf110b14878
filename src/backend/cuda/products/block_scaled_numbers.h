#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/products/block_scaled.h"

// The numbers of MXFP8 and NVFP4 and how values are rounded to them: the same bits on hosts and
// devices, which quant/ does not give to kernels.
namespace dendrite::cuda {

DENDRITE_ANY_SIDE inline float float_of(std::uint32_t bits) {
  return __builtin_bit_cast(float, bits);
}
DENDRITE_ANY_SIDE inline std::uint32_t bits_of(float value) {
  return __builtin_bit_cast(std::uint32_t, value);
}
constexpr std::uint32_t kNotANumber = 0x7fffffffu;

DENDRITE_ANY_SIDE inline float e4m3_number(std::uint32_t code) {
  const std::uint32_t size = code & 0x7fu;
  const std::uint32_t sign = (code & 0x80u) << 24;
  if (size == 0x7fu) return float_of(kNotANumber);
  const float value =
      size < 8 ? static_cast<float>(size) * 0x1p-9f : float_of((size << 20) + (120u << 23));
  return float_of(bits_of(value) | sign);
}
DENDRITE_ANY_SIDE inline float e2m1_number(std::uint32_t code) {
  const std::uint32_t size = code & 7u;
  const float value =
      size < 2 ? static_cast<float>(size) * 0.5f : float_of((size << 22) + (126u << 23));
  return float_of(bits_of(value) | (code & 8u) << 28);
}
DENDRITE_ANY_SIDE inline float e8m0_number(std::uint32_t code) {
  if (code == 255) return float_of(kNotANumber);
  return float_of(code == 0 ? 1u << 22 : code << 23);
}

/// A code's value, and what a scale of the format multiplies with: the sign of an E4M3 that is a
/// scale has no meaning.
template <BlockFormat kFormat>
DENDRITE_ANY_SIDE inline float code_number(std::uint32_t code) {
  if constexpr (kFormat == BlockFormat::kMxfp8) return e4m3_number(code);
  return e2m1_number(code);
}
template <BlockFormat kFormat>
DENDRITE_ANY_SIDE inline float scale_number(std::uint32_t code) {
  if constexpr (kFormat == BlockFormat::kMxfp8) return e8m0_number(code);
  return e4m3_number(code & 0x7fu);
}

/// The nearest E4M3 of a value of at least 0, ties to even; 448 for what is larger, NaN for what is
/// not finite. As e4m3_code().
DENDRITE_ANY_SIDE inline std::uint32_t e4m3_code_of_size(float size) {
  const std::uint32_t bits = bits_of(size);
  if (bits >= 0x7f800000u) return 127;
  if (size < 0x1p-6f) {  // 2^14 has steps of 2^-9, those of subnormal codes
    return bits_of(size + 0x1p14f) - bits_of(0x1p14f);
  }
  const std::uint32_t code = ((bits + 0x7ffffu + (bits >> 20 & 1u)) >> 20) - (120u << 3);
  return code < 126u ? code : 126u;
}

/// The nearest E2M1, ties to even; 6 for what is larger.
DENDRITE_ANY_SIDE inline std::uint32_t e2m1_code(float value) {
  const float size = float_of(bits_of(value) & 0x7fffffffu);
  const std::uint32_t code = (size > 0.25f) + (size >= 0.75f) + (size > 1.25f) + (size >= 1.75f) +
                             (size > 2.5f) + (size >= 3.5f) + (size > 5.0f);
  return (bits_of(value) >> 28 & 8u) | code;
}

/// How a group of NVFP4 is rounded: an E4M3 that brings the largest magnitude to about 6, and what
/// values are multiplied with for that. `whole`: what all scales are multiplied with. A group with
/// a value that is not finite has a scale that is NaN, as E2M1 has none.
struct Nvfp4Rounding {
  std::uint32_t scale;
  float factor;

  /// most: the largest of the magnitudes, in the order of their bits.
  DENDRITE_ANY_SIDE Nvfp4Rounding(std::uint32_t most, float whole)
      : scale(e4m3_code_of_size(float_of(most) / 6.0f / whole)), factor(0) {
    if (most >= 0x7f800000u) scale = 127;
    if (scale != 0 && scale != 127) factor = 1.0f / (e4m3_number(scale) * whole);
  }
};

}  // namespace dendrite::cuda
