// Rows for products in FP8. Floor: bytes moved over read bandwidth; at a few rows the latency of a
// launch.
#include "backend/cuda/products/e4m3_groups.cuh"
#include "backend/cuda/products/e4m3_rows.h"
#include "backend/cuda/products/norm_rows.cuh"

namespace dendrite::cuda {
namespace {

E4m3Target target_of(const E4m3Rows& out) {
  return {reinterpret_cast<std::uint8_t*>(out.data), out.cols, out.scales(), out.scale_rows()};
}

}  // namespace

void launch_e4m3_rows(const E4m3Rows& out, const void* rows, std::int64_t stride,
                      cudaStream_t stream) {
  launch_put(target_of(out), rows, stride, out.rows, stream);
}

void launch_e4m3_norm_rows(const E4m3Rows& out, Tensor x, const std::int32_t* gather,
                           const float* norm, float eps, cudaStream_t stream) {
  launch_norm(target_of(out), x, gather, norm, eps, stream);
}

}  // namespace dendrite::cuda
