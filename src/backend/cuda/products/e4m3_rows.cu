// Rows for products in FP8. Floor: bytes moved over read bandwidth; at a few rows the latency of a
// launch.
#include "backend/cuda/products/e4m3_groups.cuh"
#include "backend/cuda/products/e4m3_rows.h"
#include "backend/cuda/products/norm_rows.cuh"

namespace dendrite::cuda {
namespace {

constexpr int kThreads = 256;

E4m3Target target_of(const E4m3Rows& out) {
  return {reinterpret_cast<std::uint8_t*>(out.data), out.cols, out.scales(), out.scale_cols()};
}

/// grid (cols / 4 / threads, rows)
__global__ void e4m3_rows_kernel(E4m3Target out, const bf16* rows, std::int64_t stride) {
  let_next_begin();
  wait_for_earlier();
  const int column = 4 * static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const bf16* from = rows + blockIdx.y * stride + column;
  out.put(blockIdx.y, column,
          column < out.cols ? __ldcg(reinterpret_cast<const uint2*>(from)) : make_uint2(0, 0));
}

}  // namespace

void launch_e4m3_rows(const E4m3Rows& out, const void* rows, std::int64_t stride,
                      cudaStream_t stream) {
  const std::int64_t blocks = (out.cols / 4 + kThreads - 1) / kThreads;
  launch_early(e4m3_rows_kernel,
               dim3(static_cast<unsigned>(blocks), static_cast<unsigned>(out.rows)), kThreads, 0,
               stream, target_of(out), static_cast<const bf16*>(rows), stride);
}

void launch_e4m3_norm_rows(const E4m3Rows& out, Tensor x, const std::int32_t* gather,
                           const float* norm, float eps, cudaStream_t stream) {
  launch_norm(target_of(out), x, gather, norm, eps, stream);
}

}  // namespace dendrite::cuda
