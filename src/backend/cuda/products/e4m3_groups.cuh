#pragma once

#include <cuda_fp8.h>

#include <cstdint>

#include "backend/cuda/base/numbers.cuh"

// How a warp rounds a group of 128 values to E4M3.
namespace dendrite::cuda {

struct E4m3Target {
  static constexpr float kLeast = 1e-35f;  // 448 by less would be infinite: groups of zeros

  std::uint8_t* codes;  // rows of `cols`
  std::int64_t cols;
  float* scales;  // [tiles, scale_rows]
  std::int64_t scale_rows;

  /// A warp's group, in bf16: of each lane four neighbours, from column `column` on.
  /// Unless `stored`, all is done but that.
  __device__ void put(std::int64_t row, int column, uint2 four, bool stored) const {
    if (column >= cols) return;  // all of the warp
    const float values[] = {low(four.x), high(four.x), low(four.y), high(four.y)};
    float most = 0;
    for (const float value : values) most = fmaxf(most, fabsf(value));
    most = warp_max(most);
    const bool counts = !(most < kLeast);  // NaN and infinity do
    const float factor = counts ? 448.0f / most : 0.0f;
    const auto pair = [&](int i) {
      const float2 scaled = make_float2(values[i] * factor, values[i + 1] * factor);
      return static_cast<std::uint32_t>(
          __nv_cvt_float2_to_fp8x2(scaled, __NV_SATFINITE, __NV_E4M3));
    };
    const std::uint32_t codes_of_four = pair(0) | pair(2) << 16;
    if (stored) *reinterpret_cast<std::uint32_t*>(codes + row * cols + column) = codes_of_four;
    if (threadIdx.x % 32 == 0 && stored)
      scales[column / 128 * scale_rows + row] = counts ? most / 448.0f : 0.0f;
  }

 private:
  static __device__ float low(std::uint32_t pair) { return __uint_as_float(pair << 16); }
  static __device__ float high(std::uint32_t pair) { return __uint_as_float(pair & 0xffff0000u); }
};

}  // namespace dendrite::cuda
