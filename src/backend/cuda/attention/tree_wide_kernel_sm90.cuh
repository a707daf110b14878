#pragma once

#include "backend/cuda/attention/tree_kernels.h"
#include "backend/cuda/attention/tree_wide_consumer_sm90.cuh"

// Attention over a tree of pages by products of warpgroups (wgmma), for compute capability 9.0 and
// heads of 192 dims and more, K and V in bf16. A thread block works on a tile of 64 packed rows
// (tree_tile_kernel.cuh says how rows are packed). Values of so wide heads do not fit into the
// registers of one warpgroup: two or three have panels of 64 dims in turns. Each finds the scores
// of its share of a block's tokens; maxima and probabilities are shared through shared memory.
// Another warpgroup brings panels of [128 tokens][64 dims] of K and V, 16-byte pieces swizzled, to
// a ring, across tiles. What a group has when a run is folded into it lies in memory.
//
// Order of operations: that of tree_pair_kernel_sm90.cuh, whose bits it gives. Floor: unique pages'
// bytes over bandwidth, those of a tile's blocks over the cache's, or 4 rows tokens head_dim heads
// FLOP.
namespace dendrite::cuda {

/// grid: one a multiprocessor; block WideLayout::kThreads
template <int kDim, bool kCaps>
__global__ void __launch_bounds__(WideLayout<kDim>::kThreads, 1)
    wide_kernel(const __grid_constant__ TreeAttentionArguments args) {
  using Layout = WideLayout<kDim>;
  extern __shared__ std::byte unaligned[];
  std::byte* shared = unaligned + (1024 - shared_address(unaligned) % 1024) % 1024;
  if (threadIdx.x < 256) {
    reinterpret_cast<std::uint32_t*>(shared + Layout::kOnes)[threadIdx.x] = kOnes;
    fence_shared_for_products();
  }
  if (threadIdx.x == 0) WideRing<kDim>(shared_address(shared)).init();
  __syncthreads();
  if (threadIdx.x < Layout::kGroups * kWarpgroup) {
    take_registers<232>();
    WideConsumer<kDim, kCaps>(args, shared).run();
  } else {
    leave_registers<40>();
    WideProducer<kDim>(args, shared_address(shared)).run();
  }
}

template <int kDim>
void WideKernel<kDim>::prepare(int shared_bytes) {
  static_cast<void>(shared_bytes);  // 9.0 has enough
  for (auto* kernel : {wide_kernel<kDim, false>, wide_kernel<kDim, true>}) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               WideLayout<kDim>::kBytes),
          "attention");
  }
}

template <int kDim>
void WideKernel<kDim>::launch(const TreeAttentionArguments& args, const TreeGrid& grid,
                              cudaStream_t stream) {
  using Layout = WideLayout<kDim>;
  auto* kernel = args.cap_factor > 0 ? wide_kernel<kDim, true> : wide_kernel<kDim, false>;
  launch_early(kernel, dim3(static_cast<unsigned>(grid.workers)), Layout::kThreads,
               static_cast<std::size_t>(Layout::kBytes), stream, args);
}

}  // namespace dendrite::cuda
