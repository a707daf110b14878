// What comes out of a delta network's state, normed by head and gated; gates of attention; squared
// ReLU.
// Floor: bytes moved; a few microseconds of launch rule.
#include "backend/cuda/base/activations.cuh"
#include "backend/cuda/base/launch.cuh"
#include "backend/cuda/base/numbers.cuh"
#include "backend/cuda/recurrence/delta_net.h"

namespace dendrite::cuda {
namespace {

constexpr int kWarps = 4;
constexpr int kThreads = kWarps * 32;

/// A warp has a row's head: normed, gated. A lane has kOwn values, for which it asks at once; 0: as
/// many as there are. grid (heads / kWarps, rows)
template <int kOwn>
__global__ void __launch_bounds__(kThreads)
    norm_kernel(const __grid_constant__ DeltaNetArguments a) {
  let_next_begin();
  const int lane = static_cast<int>(threadIdx.x) % 32;
  const int head = static_cast<int>(blockIdx.x) * kWarps + static_cast<int>(threadIdx.x) / 32;
  if (head >= a.value_heads) return wait_for_earlier();
  const std::int64_t row = blockIdx.y;
  const int columns = a.value_heads * a.value_dim;
  const float* values = a.values + row * columns + head * a.value_dim;
  const float* gates = a.in + row * a.in_stride + a.gates_at + head * a.value_dim;
  constexpr int kHeld = kOwn > 0 ? kOwn : 1;
  float held[3][kHeld];  // norm, values, gates
  if constexpr (kOwn > 0) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) held[0][i] = a.norm[lane + 32 * i];
  }
  wait_for_earlier();
  if constexpr (kOwn > 0) {
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      held[1][i] = values[lane + 32 * i];
      held[2][i] = gates[lane + 32 * i];
    }
  }
  const auto each = [&](const auto& fn) {
    if constexpr (kOwn > 0) {
#pragma unroll
      for (int i = 0; i < kOwn; ++i) fn(lane + 32 * i, held[0][i], held[1][i], held[2][i]);
    } else {
      for (int v = lane; v < a.value_dim; v += 32) fn(v, a.norm[v], values[v], gates[v]);
    }
  };
  float sum = 0;
  each([&](int, float, float value, float) { sum = fmaf(value, value, sum); });
  const float mean = warp_sum(sum) / static_cast<float>(a.value_dim);
  const float factor = 1.0f / sqrtf(mean + a.norm_eps);
  const std::int64_t at = row * a.out_ld + head * a.value_dim;
  each([&](int v, float norm, float value, float gate) {
    const float open = a.by_channel ? sigmoid(gate) : silu(gate);
    const float out = norm * (value * factor) * open;
    if (a.out_bf16) {
      static_cast<bf16*>(a.out)[at + v] = narrow<bf16>(out);
    } else {
      static_cast<float*>(a.out)[at + v] = out;
    }
  });
  if (!a.out_bf16 || head != a.value_heads - 1) return;
  for (std::int64_t i = columns + lane; i < a.out_ld; i += 32) {
    static_cast<bf16*>(a.out)[row * a.out_ld + i] = narrow<bf16>(0.0f);
  }
}

/// grid (columns, rows)
__global__ void gate_kernel(const GateArguments a) {
  let_next_begin();
  wait_for_earlier();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  const std::int64_t row = blockIdx.y;
  if (i >= (a.out_bf16 ? a.out_ld : a.cols)) return;
  const float out =
      i < a.cols ? a.x[row * a.x_stride + i] * sigmoid(a.gate[row * a.gate_stride + i / a.of_gate])
                 : 0.0f;
  if (a.out_bf16) {
    static_cast<bf16*>(a.out)[row * a.out_ld + i] = narrow<bf16>(out);
  } else {
    static_cast<float*>(a.out)[row * a.out_ld + i] = out;
  }
}

/// grid (columns, rows)
__global__ void squared_relu_kernel(float* x, std::int64_t stride, std::int64_t cols) {
  let_next_begin();
  wait_for_earlier();
  const std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  if (i >= cols) return;
  float* const at = x + static_cast<std::int64_t>(blockIdx.y) * stride + i;
  *at = SquaredRelu{}(*at);
}

constexpr unsigned kBlockColumns = 256;

}  // namespace

void launch_delta_net_norm(const DeltaNetArguments& args, std::int64_t rows, cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((args.value_heads + kWarps - 1) / kWarps),
                  static_cast<unsigned>(rows));
  const auto kernel = args.value_dim == 128 ? norm_kernel<4> : norm_kernel<0>;
  launch_early(kernel, grid, kThreads, 0, stream, args);
}

void launch_gate(const GateArguments& args, cudaStream_t stream) {
  const std::int64_t cols = args.out_bf16 ? args.out_ld : args.cols;
  const dim3 grid(static_cast<unsigned>((cols + kBlockColumns - 1) / kBlockColumns),
                  static_cast<unsigned>(args.rows));
  launch_early(gate_kernel, grid, kBlockColumns, 0, stream, args);
}

void launch_squared_relu(float* x, std::int64_t stride, std::int64_t rows, std::int64_t cols,
                         cudaStream_t stream) {
  const dim3 grid(static_cast<unsigned>((cols + kBlockColumns - 1) / kBlockColumns),
                  static_cast<unsigned>(rows));
  launch_early(squared_relu_kernel, grid, kBlockColumns, 0, stream, x, stride, cols);
}

}  // namespace dendrite::cuda
