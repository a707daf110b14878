#include "backend/cuda/group/peer_sums.h"

namespace dendrite::cuda {
namespace {

constexpr unsigned kThreads = 256;

__global__ void peer_sum_kernel(float* out, std::int64_t stride, PeerParts parts, const float* bias,
                                std::int64_t rows, std::int64_t cols, bool add) {
  const std::int64_t i = std::int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= rows * cols) return;
  float sum = parts.data[0][i];
#pragma unroll
  for (std::size_t part = 1; part < kMostRanks; ++part) {
    if (part < parts.count) sum += parts.data[part][i];
  }
  const std::int64_t col = i % cols;
  if (bias != nullptr) sum += bias[col];
  float& to = out[i / cols * stride + col];
  to = add ? to + sum : sum;
}

}  // namespace

void launch_peer_sum(Tensor out, const PeerParts& parts, const float* bias, bool add,
                     cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((out.rows * out.cols + kThreads - 1) / kThreads);
  peer_sum_kernel<<<blocks, kThreads, 0, stream>>>(out.data, out.stride, parts, bias, out.rows,
                                                   out.cols, add);
}

}  // namespace dendrite::cuda
