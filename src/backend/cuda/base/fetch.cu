#include <algorithm>

#include "backend/cuda/base/fetch.h"

namespace dendrite::cuda {
namespace {

constexpr int kThreads = 256;

/// grid (blocks, pieces)
__global__ void fetch_kernel(FetchList list) {
  const FetchList::Piece& piece = list.pieces[blockIdx.y];
  for (std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * kThreads + threadIdx.x;
       i < piece.count; i += static_cast<std::int64_t>(gridDim.x) * kThreads) {
    piece.to[i] = piece.from[i];
  }
}

}  // namespace

void launch_fetch(const FetchList& list, cudaStream_t stream) {
  if (list.size == 0) return;
  std::int64_t longest = 0;
  for (int i = 0; i < list.size; ++i) longest = std::max(longest, list.pieces[i].count);
  const auto blocks = std::min<std::int64_t>((longest + kThreads - 1) / kThreads, 64);
  const dim3 grid(static_cast<unsigned>(blocks), static_cast<unsigned>(list.size));
  fetch_kernel<<<grid, kThreads, 0, stream>>>(list);
}

}  // namespace dendrite::cuda
