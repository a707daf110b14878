#pragma once

#include <cstdint>

#include "backend/cuda/base/launch.cuh"
#include "backend/cuda/base/numbers.cuh"
#include "backend/tensor.h"

// Rows to wherever products read them: bf16 as they are, or RMSNorm's, rounded to bf16.
namespace dendrite::cuda {

inline constexpr int kNormThreads = 512;
inline constexpr int kMostNormPieces = 8;  // of 4 values a thread

__device__ inline uint2 rounded4(float4 v) {
  const __nv_bfloat162 low = __floats2bfloat162_rn(v.x, v.y);
  const __nv_bfloat162 high = __floats2bfloat162_rn(v.z, v.w);
  return make_uint2(*reinterpret_cast<const std::uint32_t*>(&low),
                    *reinterpret_cast<const std::uint32_t*>(&high));
}

/// Of no more rows products are of kernels that let the next one begin long before they are done.
/// It runs once over nothing meanwhile, so that its instructions are near: 1 of 5 us with E4M3 on
/// an H200.
inline constexpr unsigned kFewNormRows = 112;

/// One block a row, which its threads hold in registers: no more than the row needs, so that
/// several blocks fit a multiprocessor.
/// Target: put(row, column, four, stored): four neighbours in bf16, zeros behind the row's end; a
/// warp has those of 32 pieces. Unless `stored`, it does all but store.
template <int kNormPieces, class Target>
__global__ void __launch_bounds__(kNormThreads)
    norm_rows_kernel(Target out, const float* x, std::int64_t stride, const std::int32_t* gather,
                     const float* norm, int cols, float eps) {
  let_next_begin();
  const int pieces = cols / 4;
  float4 weights[kNormPieces] = {};
#pragma unroll
  for (int i = 0; i < kNormPieces; ++i) {
    const int piece = static_cast<int>(threadIdx.x) + i * kNormThreads;
    if (piece < pieces) weights[i] = reinterpret_cast<const float4*>(norm)[piece];
  }
  __shared__ float partial[kNormThreads / 32];
#pragma unroll 1
  for (bool dry = gridDim.x <= kFewNormRows;; dry = false) {
    if (!dry) wait_for_earlier();
    const std::int64_t row = gather != nullptr && !dry ? gather[blockIdx.x] : blockIdx.x;
    const auto* values = reinterpret_cast<const float4*>(x + row * stride);
    const float none = dry ? 1.0f : 0.0f;
    float4 kept[kNormPieces];
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kNormPieces; ++i) {
      const int piece = static_cast<int>(threadIdx.x) + i * kNormThreads;
      kept[i] =
          piece < pieces && !dry ? __ldcg(values + piece) : make_float4(none, none, none, none);
      const float4 v = kept[i];
      sum = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, sum))));
    }
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
    __syncthreads();
    float total = 0;
    for (const float part : partial) total += part;
    const float factor = 1.0f / sqrtf(total / static_cast<float>(cols) + eps);
#pragma unroll
    for (int i = 0; i < kNormPieces; ++i) {
      const int piece = static_cast<int>(threadIdx.x) + i * kNormThreads;
      const float4 v = kept[i];
      const float4 w = weights[i];
      const float4 normed = make_float4(v.x * factor * w.x, v.y * factor * w.y, v.z * factor * w.z,
                                        v.w * factor * w.w);
      out.put(blockIdx.x, 4 * piece, piece < pieces ? rounded4(normed) : make_uint2(0, 0), !dry);
    }
    if (!dry) return;
    __syncthreads();
  }
}

/// Target: as of norm_rows_kernel, with `cols`. grid (cols / 4 / threads, rows)
template <class Target>
__global__ void put_rows_kernel(Target out, const bf16* rows, std::int64_t stride) {
  let_next_begin();
  const int column = 4 * static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const bf16* from = rows + blockIdx.y * stride + column;
#pragma unroll 1
  for (bool dry = gridDim.y <= kFewNormRows;; dry = false) {
    if (!dry) wait_for_earlier();
    const bool there = column < out.cols && !dry;
    const std::uint32_t none = dry ? 0x3f803f80u : 0;  // ones
    out.put(blockIdx.y, column,
            there ? __ldcg(reinterpret_cast<const uint2*>(from)) : make_uint2(none, none), !dry);
    if (!dry) return;
  }
}

/// rows: bf16, `stride` values apart, on 8 bytes
template <class Target>
void launch_put(const Target& out, const void* rows, std::int64_t stride, std::int64_t count,
                cudaStream_t stream) {
  constexpr int kThreads = 256;
  const std::int64_t blocks = (out.cols / 4 + kThreads - 1) / kThreads;
  launch_early(put_rows_kernel<Target>,
               dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(count)), kThreads, 0,
               stream, out, static_cast<const bf16*>(rows), stride);
}

template <class Target>
void launch_norm(const Target& out, Tensor x, const std::int32_t* gather, const float* norm,
                 float eps, cudaStream_t stream) {
  const std::int64_t pieces = (x.cols + 4 * kNormThreads - 1) / (4 * kNormThreads);
  const auto kernel = pieces <= 1   ? norm_rows_kernel<1, Target>
                      : pieces <= 2 ? norm_rows_kernel<2, Target>
                      : pieces <= 4 ? norm_rows_kernel<4, Target>
                                    : norm_rows_kernel<kMostNormPieces, Target>;
  launch_early(kernel, dim3(static_cast<unsigned>(x.rows)), kNormThreads, 0, stream, out, x.data,
               x.stride, gather, norm, static_cast<int>(x.cols), eps);
}

}  // namespace dendrite::cuda
