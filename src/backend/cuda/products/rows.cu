// Row-wise ops: embedding, RMSNorm, activations, scaling, gathering. One block a row; a row's bits
// do not depend on the others. Floor: bytes moved over read bandwidth; a few microseconds of launch
// rule.
#include <cuda_fp8.h>

#include "backend/cuda/base/activations.cuh"
#include "backend/cuda/base/launch.cuh"
#include "backend/cuda/base/numbers.cuh"
#include "backend/cuda/products/block_scaled_numbers.h"
#include "backend/cuda/products/e4m3_rows.h"
#include "backend/cuda/products/packed_kernels.h"
#include "backend/cuda/products/rows.h"

namespace dendrite::cuda {
namespace {

constexpr int kThreads = 256;

template <typename T>
struct PlainMatrix {
  const T* data;
  std::int64_t ld;

  __device__ float value(std::int64_t row, std::int64_t i) const {
    return widen(data[row * ld + i]);
  }
};

template <BlockFormat kFormat>
struct BlockMatrix {
  using Traits = BlockTraits<kFormat>;
  const std::uint32_t* data;
  BlockWeightLayout<kFormat> layout;
  const float* factors;  // of rows; or null

  __device__ float value(std::int64_t row, std::int64_t i) const {
    const std::int64_t tile = i / Traits::kTile;
    const int column = static_cast<int>(i % Traits::kTile);
    const int at = weight_word_at<kFormat>(static_cast<int>(row % Traits::kTileRows),
                                           column / Traits::kWordColumns);
    const std::uint32_t codes = data[layout.words_at(row, tile) + at];
    const int group = column / Traits::kGroup;
    const std::uint32_t scales = data[layout.scales_at(row, tile) + group / 4];
    constexpr int kBits = 32 / Traits::kWordColumns;
    const float code =
        code_number<kFormat>(codes >> column % Traits::kWordColumns * kBits & ((1u << kBits) - 1));
    const float scale = scale_number<kFormat>(scales >> group % 4 * 8 & 255u);
    return widen(narrow<bf16>((factors != nullptr ? scale * factors[row] : scale) * code));
  }
};

/// Codes and their scales; values are rounded as packed ones are.
struct E4m3Matrix {
  const __nv_fp8_e4m3* codes;
  std::int64_t cols;
  const float* scales;
  std::int64_t eights;  // of rows, each with a scale for 128 columns; 0: a row has one

  __device__ float value(std::int64_t row, std::int64_t i) const {
    const float scale = eights == 0 ? scales[row] : scales[i / kE4m3Group * eights + row / 8];
    return widen(narrow<bf16>(scale * static_cast<float>(codes[row * cols + i])));
  }
};

/// grid (rows, cols / threads)
template <class Matrix>
__global__ void embed_kernel(float* out, std::int64_t stride, const std::int32_t* tokens,
                             const std::int32_t* drawn, Matrix weight, std::int64_t cols) {
  std::int32_t token = tokens[blockIdx.x];
  if (token < 0) token = drawn[-1 - token];  // PassInputs::token_of_draw
  out += blockIdx.x * stride;
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.y) * kThreads + threadIdx.x;
  if (i < cols) out[i] = weight.value(token, i);
}

/// 1 / sqrt(mean(x^2) + eps) of a block's row.
__device__ float norm_factor(const float* x, std::int64_t cols, float eps) {
  float sum = 0;
  for (std::int64_t i = threadIdx.x; i < cols; i += kThreads) sum = fmaf(x[i], x[i], sum);
  __shared__ float partial[kThreads / 32];
  sum = warp_sum(sum);
  if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = sum;
  __syncthreads();
  float total = 0;
  for (int w = 0; w < kThreads / 32; ++w) total += partial[w];
  return 1.0f / sqrtf(total / static_cast<float>(cols) + eps);
}

/// out = x / sqrt(mean(x^2) + eps) * weight. Source: Zhang & Sennrich 2019, arXiv:1910.07467.
__global__ void rms_norm_kernel(float* out, std::int64_t out_stride, const float* x,
                                std::int64_t x_stride, const float* weight, std::int64_t cols,
                                float eps) {
  x += blockIdx.x * x_stride;
  out += blockIdx.x * out_stride;
  const float factor = norm_factor(x, cols, eps);
  for (std::int64_t i = threadIdx.x; i < cols; i += kThreads) out[i] = x[i] * factor * weight[i];
}

/// out += factor * x, or factor * rms_norm(x) where there is a weight.
__global__ void add_normed_kernel(float* out, std::int64_t out_stride, const float* x,
                                  std::int64_t x_stride, const float* weight, std::int64_t cols,
                                  float eps, float factor) {
  let_next_begin();
  wait_for_earlier();
  x += blockIdx.x * x_stride;
  out += blockIdx.x * out_stride;
  if (weight != nullptr) factor *= norm_factor(x, cols, eps);
  for (std::int64_t i = threadIdx.x; i < cols; i += kThreads) {
    const float value = weight != nullptr ? x[i] * weight[i] : x[i];
    out[i] = fmaf(factor, value, out[i]);
  }
}

/// grid (ffn / threads, rows)
template <typename Gate>
__global__ void activate_kernel(float* out, std::int64_t out_stride, const float* gate_up,
                                std::int64_t stride, std::int64_t ffn, Gate gate) {
  let_next_begin();
  wait_for_earlier();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= ffn) return;
  const float* row = gate_up + blockIdx.y * stride;
  out[blockIdx.y * out_stride + i] = gate(row[i], row[ffn + i]);
}

/// x = factor * x, then with a cap cap * tanh(x / cap). grid (cols / threads, rows)
__global__ void scale_kernel(float* x, std::int64_t stride, std::int64_t cols, float factor,
                             float cap) {
  let_next_begin();
  wait_for_earlier();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= cols) return;
  float& value = x[blockIdx.y * stride + i];
  const float scaled = factor * value;
  value = cap > 0 ? cap * tanhf(scaled / cap) : scaled;
}

/// grid (cols / threads, rows)
__global__ void scale_rows_kernel(float* x, std::int64_t stride, std::int64_t cols,
                                  const float* factors) {
  let_next_begin();
  wait_for_earlier();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= cols) return;
  x[blockIdx.y * stride + i] *= factors[blockIdx.y];
}

__global__ void gather_kernel(float* out, std::int64_t out_stride, const float* x,
                              std::int64_t x_stride, const std::int32_t* rows, std::int64_t cols) {
  const float* source = x + rows[blockIdx.x] * x_stride;
  out += blockIdx.x * out_stride;
  for (std::int64_t i = threadIdx.x; i < cols; i += blockDim.x) out[i] = source[i];
}

/// A thread a value.
dim3 grid_of(const Tensor& tensor) {
  return {static_cast<unsigned>((tensor.cols + kThreads - 1) / kThreads),
          static_cast<unsigned>(tensor.rows)};
}

}  // namespace

void launch_embed(Tensor out, const std::int32_t* tokens, const std::int32_t* drawn,
                  const CudaWeight& weight, cudaStream_t stream) {
  if (const Packing* packing = weight.packed()) {
    packed::Embed embed;
    embed.weight = reinterpret_cast<const std::uint8_t*>(weight.data());
    embed.cols = out.cols;
    embed.less = packing->less;
    embed.tokens = tokens;
    embed.drawn = drawn;
    embed.out = out.data;
    embed.rows = out.rows;
    embed.stride = out.stride;
    return packing->kernels->embed(embed, stream);
  }
  const auto launch = [&](const auto& matrix) {
    const dim3 grid(static_cast<unsigned>(out.rows),
                    static_cast<unsigned>((out.cols + kThreads - 1) / kThreads));
    embed_kernel<<<grid, kThreads, 0, stream>>>(out.data, out.stride, tokens, drawn, matrix,
                                                out.cols);
  };
  if (const BlockScales* scales = weight.block_scales()) {
    const auto launch_blocks = [&]<BlockFormat kFormat>() {
      launch(BlockMatrix<kFormat>{reinterpret_cast<const std::uint32_t*>(weight.data()),
                                  {weight.rows(), weight.cols()},
                                  reinterpret_cast<const float*>(scales->factors.data())});
    };
    if (scales->format == BlockFormat::kMxfp8) {
      return launch_blocks.template operator()<BlockFormat::kMxfp8>();
    }
    return launch_blocks.template operator()<BlockFormat::kNvfp4>();
  }
  if (const WeightScales* scales = weight.scales()) {
    return launch(E4m3Matrix{reinterpret_cast<const __nv_fp8_e4m3*>(weight.data()), weight.cols(),
                             scales->data(), scales->squares ? weight.rows() / 8 : 0});
  }
  const auto launch_plain = [&]<typename T>(const T* data) {
    launch(PlainMatrix<T>{data, weight.ld()});
  };
  switch (weight.dtype()) {
    case DType::kF32:
      return launch_plain(reinterpret_cast<const float*>(weight.data()));
    case DType::kF16:
      return launch_plain(reinterpret_cast<const __half*>(weight.data()));
    case DType::kBF16:
      return launch_plain(reinterpret_cast<const bf16*>(weight.data()));
  }
}

void launch_rms_norm(Tensor out, Tensor x, const float* weight, float eps, cudaStream_t stream) {
  rms_norm_kernel<<<static_cast<unsigned>(x.rows), kThreads, 0, stream>>>(
      out.data, out.stride, x.data, x.stride, weight, x.cols, eps);
}

void launch_add_normed(Tensor out, Tensor x, const float* weight, float eps, float factor,
                       cudaStream_t stream) {
  launch_early(add_normed_kernel, dim3(static_cast<unsigned>(x.rows)), kThreads, 0, stream,
               out.data, out.stride, x.data, x.stride, weight, x.cols, eps, factor);
}

void launch_activate(Tensor out, Tensor gate_up, const Activation& activation,
                     cudaStream_t stream) {
  with_gate(activation, [&]<typename Gate>(Gate gate) {
    launch_early(activate_kernel<Gate>, grid_of(out), kThreads, 0, stream, out.data, out.stride,
                 gate_up.data, gate_up.stride, out.cols, gate);
  });
}

void launch_scale(Tensor x, float factor, float cap, cudaStream_t stream) {
  launch_early(scale_kernel, grid_of(x), kThreads, 0, stream, x.data, x.stride, x.cols, factor,
               cap);
}

void launch_scale_rows(Tensor x, const float* factors, cudaStream_t stream) {
  launch_early(scale_rows_kernel, grid_of(x), kThreads, 0, stream, x.data, x.stride, x.cols,
               factors);
}

void launch_gather(Tensor out, Tensor x, const std::int32_t* rows, cudaStream_t stream) {
  gather_kernel<<<static_cast<unsigned>(out.rows), kThreads, 0, stream>>>(
      out.data, out.stride, x.data, x.stride, rows, x.cols);
}

}  // namespace dendrite::cuda
