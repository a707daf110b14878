#pragma once

#include <cuda_fp16.h>

#include <cstdint>

#include "quant/e4m3.h"

// Vectors of E4M3 with a power of two each (quant/e4m3.h) on the device: the same bytes as
// round_to_e4m3() gives, and their values, which are exact in bf16.
namespace dendrite::cuda {

/// What the scale of a vector is found from: the largest of these.
__device__ inline std::uint32_t finite_magnitude(float value) {
  const std::uint32_t bits = __float_as_uint(value) & 0x7fffffffu;  // in the order of magnitudes
  return bits < 0x7f800000u ? bits : 0;
}

/// e4m3_scale() of the largest finite_magnitude().
__device__ inline std::uint32_t e4m3_scale_of(std::uint32_t most) {
  const int exponent = static_cast<int>((most + 0x17ffffu) >> 23) - 8;
  return static_cast<std::uint32_t>(max(kLeastE4m3Scale, min(kMostE4m3Scale, exponent)));
}

/// A value's code in a vector of this scale, as round_to_e4m3().
__device__ inline std::uint32_t e4m3_code_of(float value, std::uint32_t scale) {
  const float scaled = __fmul_rn(value, __uint_as_float((254u - scale) << 23));
  const std::uint32_t magnitude = __float_as_uint(scaled) & 0x7fffffffu;
  std::uint32_t code =
      min(((magnitude + 0x7ffffu + (magnitude >> 20 & 1u)) >> 20) - (120u << 3), 126u);
  if (magnitude < 0x3c800000u) {  // below 2^-6: 2^14 has steps of 2^-9, those of subnormal codes
    code = __float_as_uint(__fadd_rn(fabsf(scaled), 0x1p14f)) - 0x46800000u;
  }
  if (magnitude >= 0x7f800000u) code = 127;
  return (__float_as_uint(value) >> 24 & 128u) | code;
}

/// 2^(scale - 127 + 8): what e4m3_value() multiplies.
__device__ inline float e4m3_factor(std::uint32_t scale) {
  return __uint_as_float(min(scale + 8u, 254u) << 23);
}
/// The value of a code, by way of an f16, whose exponent has one more bit: 256 times less.
__device__ inline float e4m3_value_of(std::uint32_t code, float factor) {
  const std::uint32_t half = (code & 0x80u) << 8 | (code & 0x7fu) << 7;
  const float value = __half2float(__ushort_as_half(static_cast<unsigned short>(half)));
  return (code & 0x7fu) == 0x7fu ? __uint_as_float(0x7fffffffu) : __fmul_rn(value, factor);
}

/// a b of pairs of bf16, where that is exact.
__device__ inline std::uint32_t multiply_pairs(std::uint32_t a, std::uint32_t b) {
  std::uint32_t product;
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(product) : "r"(a), "r"(b), "r"(0x80008000u));
  return product;
}

/// The values of four codes in bf16, as two words: codes 0 and 1, 2 and 3. NaN becomes 480.
__device__ inline uint2 widen_four(std::uint32_t codes) {
  // The exponent's bits to where bf16 has its own, whose bias is 120 more. Subnormal codes become
  // subnormal bf16, which are multiplied exactly, too.
  constexpr std::uint32_t kBias = 0x7b807b80u;  // 2^120
  const std::uint32_t low = __byte_perm(codes, 0, 0x1404);
  const std::uint32_t high = __byte_perm(codes, 0, 0x3424);
  return make_uint2(multiply_pairs((low & 0x80008000u) | (low >> 4 & 0x07f007f0u), kBias),
                    multiply_pairs((high & 0x80008000u) | (high >> 4 & 0x07f007f0u), kBias));
}
/// Those of a vector of this scale. `factor`: e4m3_pair_factor(). NaN becomes 480 times the scale:
/// see mark_nans().
__device__ inline uint2 widen_four(std::uint32_t codes, std::uint32_t factor) {
  const uint2 words = widen_four(codes);
  return make_uint2(multiply_pairs(words.x, factor), multiply_pairs(words.y, factor));
}
/// 2^(scale - 127) twice. Finite whatever the byte, so that codes that are zero stay so.
__device__ inline std::uint32_t e4m3_pair_factor(std::uint32_t scale) {
  return min(scale, 254u) * 0x00800080u;
}

/// 0x80 in each byte whose code is NaN.
__device__ inline std::uint32_t nans_of(std::uint32_t codes) {
  return ((codes & 0x7f7f7f7fu) + 0x01010101u) & 0x80808080u;
}
/// Makes NaN of the values whose codes are.
__device__ inline void mark_nans(uint2& words, std::uint32_t nans) {
  words.x |= (__byte_perm(nans, 0, 0x1404) >> 15 & 0x00010001u) * 0x7fffu;
  words.y |= (__byte_perm(nans, 0, 0x3424) >> 15 & 0x00010001u) * 0x7fffu;
}

/// Sixteen codes at `address` in shared memory, a multiple of 16, become the values of eight in
/// bf16 there and of the others in the 16 bytes beside it, at address ^ 16.
__device__ inline void widen_in_place(std::uint32_t address, std::uint32_t factor) {
  std::uint32_t codes[4];
  asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
               : "=r"(codes[0]), "=r"(codes[1]), "=r"(codes[2]), "=r"(codes[3])
               : "r"(address)
               : "memory");
  uint2 words[4];
  std::uint32_t nans = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    words[i] = widen_four(codes[i], factor);
    nans |= (codes[i] & 0x7f7f7f7fu) + 0x01010101u;
  }
  if ((nans & 0x80808080u) != 0) {
#pragma unroll
    for (int i = 0; i < 4; ++i) mark_nans(words[i], nans_of(codes[i]));
  }
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address), "r"(words[0].x),
               "r"(words[0].y), "r"(words[1].x), "r"(words[1].y)
               : "memory");
  asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(address ^ 16), "r"(words[2].x),
               "r"(words[2].y), "r"(words[3].x), "r"(words[3].y)
               : "memory");
}

}  // namespace dendrite::cuda
