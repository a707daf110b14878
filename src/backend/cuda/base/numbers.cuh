#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

// Conversions and fixed-order folds shared by the kernels.
namespace dendrite::cuda {

using bf16 = __nv_bfloat16;

__device__ inline float widen(float x) {
  return x;
}
__device__ inline float widen(bf16 x) {
  return __bfloat162float(x);
}
__device__ inline float widen(__half x) {
  return __half2float(x);
}

template <typename T>
__device__ inline T narrow(float x);
template <>
__device__ inline float narrow<float>(float x) {
  return x;
}
template <>
__device__ inline bf16 narrow<bf16>(float x) {
  return __float2bfloat16_rn(x);
}

/// A half of a word in both halves: where that is multiplied as a pair it takes no instruction.
__device__ inline std::uint32_t lower_twice(std::uint32_t word) {
  const __nv_bfloat162 twice = __low2bfloat162(reinterpret_cast<const __nv_bfloat162&>(word));
  return reinterpret_cast<const std::uint32_t&>(twice);
}
__device__ inline std::uint32_t upper_twice(std::uint32_t word) {
  const __nv_bfloat162 twice = __high2bfloat162(reinterpret_cast<const __nv_bfloat162&>(word));
  return reinterpret_cast<const std::uint32_t&>(twice);
}

/// 1 / (1 + e^-x)
__device__ inline float sigmoid(float x) {
  const float e = expf(-fabsf(x));                 // never overflows
  return __fdividef(x >= 0 ? 1.0f : e, 1.0f + e);  // without a branch, which values would wait at
}
__device__ inline float silu(float x) {
  return x * sigmoid(x);
}

/// The lanes' sum by a butterfly: every lane has the same bits, always by the same tree.
__device__ inline float warp_sum(float x) {
  for (int width = 16; width > 0; width /= 2) x += __shfl_xor_sync(0xffffffffu, x, width);
  return x;
}
__device__ inline float warp_max(float x) {
  for (int width = 16; width > 0; width /= 2) x = fmaxf(x, __shfl_xor_sync(0xffffffffu, x, width));
  return x;
}

}  // namespace dendrite::cuda
