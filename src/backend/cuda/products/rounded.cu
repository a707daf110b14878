// Row-wise ops whose result is the bf16 input of a product: one pass, one rounding, 16-byte loads.
// Floor: the bytes moved over read bandwidth; at a few rows the latency of a launch.
#include "backend/cuda/products/norm_rows.cuh"
#include "backend/cuda/products/rounded.h"

namespace dendrite::cuda {
namespace {

constexpr int kThreads = 256;

/// Rows of ld values, zeros behind their ends.
struct Bf16Target {
  bf16* out;
  std::int64_t ld;

  __device__ void put(std::int64_t row, int column, uint2 four, bool stored) const {
    if (column < ld && stored) *reinterpret_cast<uint2*>(out + row * ld + column) = four;
  }
};

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
  *reinterpret_cast<uint2*>(out + blockIdx.y * ld + i) = rounded4(v);
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
  *reinterpret_cast<uint2*>(out + blockIdx.y * ld + i) =
      rounded4(make_float4(value(i), value(i + 1), value(i + 2), value(i + 3)));
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
  launch_norm(Bf16Target{static_cast<bf16*>(out), ld}, x, gather, norm, eps, stream);
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
