// Row-wise ops whose result is the bf16 input of a product: one pass, one rounding, 16-byte loads.
// Floor: the bytes moved over read bandwidth; at a few rows the latency of a launch.
#include "backend/cuda/base/launch.cuh"
#include "backend/cuda/base/numbers.cuh"
#include "backend/cuda/products/rounded.h"

namespace dendrite::cuda {
namespace {

constexpr int kNormThreads = 512;
constexpr int kMostNormPieces = 8;  // of 4 values a thread
constexpr int kThreads = 256;

__device__ void store4(bf16* out, float4 v) {
  const __nv_bfloat162 low = __floats2bfloat162_rn(v.x, v.y);
  const __nv_bfloat162 high = __floats2bfloat162_rn(v.z, v.w);
  *reinterpret_cast<uint2*>(out) = make_uint2(*reinterpret_cast<const std::uint32_t*>(&low),
                                              *reinterpret_cast<const std::uint32_t*>(&high));
}

/// One block a row, which its threads hold in registers: no more than the row needs, so that
/// several blocks fit a multiprocessor.
template <int kNormPieces>
__global__ void __launch_bounds__(kNormThreads)
    norm_rows_kernel(bf16* out, std::int64_t ld, const float* x, std::int64_t stride,
                     const std::int32_t* gather, const float* norm, int cols, float eps) {
  let_next_begin();
  const int pieces = cols / 4;
  float4 weights[kNormPieces] = {};
#pragma unroll
  for (int i = 0; i < kNormPieces; ++i) {
    const int piece = static_cast<int>(threadIdx.x) + i * kNormThreads;
    if (piece < pieces) weights[i] = reinterpret_cast<const float4*>(norm)[piece];
  }
  wait_for_earlier();
  const std::int64_t row = gather != nullptr ? gather[blockIdx.x] : blockIdx.x;
  const auto* values = reinterpret_cast<const float4*>(x + row * stride);
  float4 kept[kNormPieces];
  float sum = 0;
#pragma unroll
  for (int i = 0; i < kNormPieces; ++i) {
    const int piece = static_cast<int>(threadIdx.x) + i * kNormThreads;
    kept[i] = piece < pieces ? __ldcg(values + piece) : make_float4(0, 0, 0, 0);
    const float4 v = kept[i];
    sum = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, fmaf(v.w, v.w, sum))));
  }
  __shared__ float partial[kNormThreads / 32];
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  float total = 0;
  for (const float part : partial) total += part;
  const float factor = 1.0f / sqrtf(total / static_cast<float>(cols) + eps);
  out += blockIdx.x * ld;
#pragma unroll
  for (int i = 0; i < kNormPieces; ++i) {
    const int piece = static_cast<int>(threadIdx.x) + i * kNormThreads;
    const float4 v = kept[i];
    const float4 w = weights[i];
    if (piece < pieces) {
      store4(out + 4 * piece, make_float4(v.x * factor * w.x, v.y * factor * w.y,
                                          v.z * factor * w.z, v.w * factor * w.w));
    } else if (4 * piece < ld) {
      store4(out + 4 * piece, make_float4(0, 0, 0, 0));
    }
  }
}

/// grid (ld / 4 / threads, rows)
__global__ void silu_rows_kernel(bf16* out, std::int64_t ld, const float* gate_up,
                                 std::int64_t stride, int ffn) {
  let_next_begin();
  wait_for_earlier();
  const int i = 4 * static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= ld) return;
  const float* row = gate_up + blockIdx.y * stride;
  float4 v = make_float4(0, 0, 0, 0);
  if (i < ffn) {
    const float4 gate = __ldcg(reinterpret_cast<const float4*>(row + i));
    const float4 up = __ldcg(reinterpret_cast<const float4*>(row + ffn + i));
    v = make_float4(silu(gate.x) * up.x, silu(gate.y) * up.y, silu(gate.z) * up.z,
                    silu(gate.w) * up.w);
  }
  store4(out + blockIdx.y * ld + i, v);
}

/// grid (ld / 4 / threads, rows)
__global__ void round_rows_kernel(bf16* out, std::int64_t ld, const float* x, std::int64_t stride,
                                  int cols) {
  let_next_begin();
  wait_for_earlier();
  const int i = 4 * static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  if (i >= ld) return;
  const float* row = x + blockIdx.y * stride;
  const auto value = [&](int j) { return j < cols ? __ldcg(row + j) : 0.0f; };
  store4(out + blockIdx.y * ld + i,
         make_float4(value(i), value(i + 1), value(i + 2), value(i + 3)));
}

dim3 grid_of(std::int64_t ld, std::int64_t rows) {
  return {static_cast<unsigned>((ld / 4 + kThreads - 1) / kThreads), static_cast<unsigned>(rows)};
}

}  // namespace

bool takes_norm_rows(const Tensor& x) {
  return x.cols % 4 == 0 && x.stride % 4 == 0 && x.cols <= 4 * kNormThreads * kMostNormPieces;
}

void launch_norm_rows(void* out, std::int64_t ld, Tensor x, const std::int32_t* gather,
                      const float* norm, float eps, cudaStream_t stream) {
  const std::int64_t pieces = (x.cols + 4 * kNormThreads - 1) / (4 * kNormThreads);
  const auto kernel = pieces <= 1   ? norm_rows_kernel<1>
                      : pieces <= 2 ? norm_rows_kernel<2>
                      : pieces <= 4 ? norm_rows_kernel<4>
                                    : norm_rows_kernel<kMostNormPieces>;
  launch_early(kernel, dim3(static_cast<unsigned>(x.rows)), kNormThreads, 0, stream,
               static_cast<bf16*>(out), ld, x.data, x.stride, gather, norm,
               static_cast<int>(x.cols), eps);
}

void launch_silu_rows(void* out, std::int64_t ld, Tensor gate_up, cudaStream_t stream) {
  launch_early(silu_rows_kernel, grid_of(ld, gate_up.rows), kThreads, 0, stream,
               static_cast<bf16*>(out), ld, gate_up.data, gate_up.stride,
               static_cast<int>(gate_up.cols / 2));
}

void launch_round_rows(void* out, std::int64_t ld, Tensor x, cudaStream_t stream) {
  launch_early(round_rows_kernel, grid_of(ld, x.rows), kThreads, 0, stream, static_cast<bf16*>(out),
               ld, x.data, x.stride, static_cast<int>(x.cols));
}

}  // namespace dendrite::cuda
