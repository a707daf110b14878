// out[m, n] = sum over k of x[m, k] * w[n, k] in f32, for f32 and f16 computing and where exactness
// counts more than time. A block makes 64 rows x 64 outputs, a thread 4 x 4; k ascends through one
// accumulator an output, so its bits do not depend on how many rows there are.
// Floor: 2 m n k over the f32 rate (67 TFLOP/s on an H200), or the weight's bytes over bandwidth.
#include "backend/cuda/base/numbers.cuh"
#include "backend/cuda/products/matmul_f32.h"

namespace dendrite::cuda {
namespace {

constexpr int kTile = 64;
constexpr int kStep = 16;
constexpr int kPad = 4;

template <typename T>
__global__ void __launch_bounds__(256)
    matmul_kernel(float* out, std::int64_t out_stride, const float* x, std::int64_t x_stride,
                  const T* w, std::int64_t ld, std::int64_t rows, std::int64_t outputs,
                  std::int64_t k_end, const float* bias, bool add) {
  __shared__ float xs[kStep][kTile + kPad];
  __shared__ float ws[kStep][kTile + kPad];
  const std::int64_t row0 = static_cast<std::int64_t>(blockIdx.y) * kTile;
  const std::int64_t n0 = static_cast<std::int64_t>(blockIdx.x) * kTile;
  const int tx = threadIdx.x % 16;  // outputs 4 * tx ..
  const int ty = threadIdx.x / 16;  // rows 4 * ty ..
  float sums[4][4] = {};
  for (std::int64_t k0 = 0; k0 < k_end; k0 += kStep) {
    for (int i = threadIdx.x; i < kTile * kStep; i += 256) {
      const int k = i % kStep;
      const int line = i / kStep;
      const bool inside = k0 + k < k_end;
      xs[k][line] = inside && row0 + line < rows ? x[(row0 + line) * x_stride + k0 + k] : 0.0f;
      ws[k][line] = inside && n0 + line < outputs ? widen(w[(n0 + line) * ld + k0 + k]) : 0.0f;
    }
    __syncthreads();
#pragma unroll
    for (int k = 0; k < kStep; ++k) {
#pragma unroll
      for (int m = 0; m < 4; ++m) {
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          sums[m][n] = fmaf(xs[k][4 * ty + m], ws[k][4 * tx + n], sums[m][n]);
        }
      }
    }
    __syncthreads();
  }
  for (int m = 0; m < 4; ++m) {
    for (int n = 0; n < 4; ++n) {
      const std::int64_t row = row0 + 4 * ty + m;
      const std::int64_t output = n0 + 4 * tx + n;
      if (row >= rows || output >= outputs) continue;
      float* target = out + row * out_stride + output;
      const float sum = bias != nullptr ? sums[m][n] + bias[output] : sums[m][n];
      *target = add ? *target + sum : sum;
    }
  }
}

}  // namespace

void launch_matmul_f32(Tensor out, Tensor x, const CudaWeight& weight, const float* bias, bool add,
                       cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((weight.rows() + kTile - 1) / kTile),
                  static_cast<unsigned>((x.rows + kTile - 1) / kTile));
  const auto launch = [&](auto* data) {
    matmul_kernel<<<grid, 256, 0, stream>>>(out.data, out.stride, x.data, x.stride, data,
                                            weight.ld(), x.rows, weight.rows(), weight.cols(), bias,
                                            add);
  };
  switch (weight.dtype()) {
    case DType::kF32:
      return launch(reinterpret_cast<const float*>(weight.data()));
    case DType::kF16:
      return launch(reinterpret_cast<const __half*>(weight.data()));
    case DType::kBF16:
      return launch(reinterpret_cast<const bf16*>(weight.data()));
  }
}

}  // namespace dendrite::cuda
