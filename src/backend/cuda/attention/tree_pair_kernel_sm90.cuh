#pragma once

#include "backend/cuda/attention/tree_consumer_sm90.cuh"
#include "backend/cuda/attention/tree_kernels.h"
#include "backend/cuda/attention/tree_producer_sm90.cuh"

// Attention over a tree of pages by products of warpgroups (wgmma), for compute capability 9.0. A
// thread block has two warpgroups of 64 packed rows each (tree_tile_kernel.cuh says how rows are
// packed) and a third one that brings K and V. It works on pairs of tiles: of the same tokens, each
// chunk being read once for both warpgroups, or of different ones, with half of the ring for each.
//
// In FP8 the third one widens codes to bf16 in shared memory (tree_codes.cuh).
//
// A chunk is K or V of a block: panels of [128 tokens][64 dims], 16-byte pieces swizzled. A ring of
// chunks is filled in the background across pairs. Packed row r * 32 + w * 8 + g is row g + 8 r of
// warp w's 16: up to 32 packed rows take one row a thread.
//
// Order of operations (tree_plan.h): a block of 128 tokens from a fresh state: scores by a chain
// over the dims, their maximum, probabilities in bf16, their sum and P V by a chain over the
// tokens. An element of a product depends on its own row and column alone; tokens that a row does
// not see have probability 0, which adds nothing, and V of slots that may hold anything is read as
// 0. Blocks are folded to runs, runs to groups, in f32. These are the operations of
// tree_tile_kernel.cuh, and they give the same bits. Floor: unique pages' bytes over bandwidth, or
// 4 rows tokens head_dim heads FLOP. Source of overlapping one warpgroup's softmax with the other's
// products: Shah et al. 2024, arXiv:2407.08608.
namespace dendrite::cuda {

/// grid: one a multiprocessor; block kThreads
template <int kDim, KvFormat kFormat, bool kCaps>
__global__ void __launch_bounds__(kThreads, 1)
    pair_kernel(const __grid_constant__ TreeAttentionArguments args) {
  using Layout = PairLayout<kDim, kFormat>;
  extern __shared__ std::byte unaligned[];
  std::byte* shared = unaligned + (1024 - shared_address(unaligned) % 1024) % 1024;
  if (threadIdx.x < 256) {
    reinterpret_cast<std::uint32_t*>(shared + Layout::kOnes)[threadIdx.x] = kOnes;
    fence_shared_for_products();
  }
  if (threadIdx.x == 0) {
    const Ring<kDim, kFormat> ring(shared_address(shared));
    for (int stage = 0; stage < Layout::kStages; ++stage) {
      init_barrier(ring.full(stage), kWarpgroup);
      init_barrier(ring.empty(stage), 8);
    }
  }
  __syncthreads();
  if (threadIdx.x < 2 * kWarpgroup) {
    take_registers<232>();
    Consumer<kDim, kFormat, kCaps>(args, shared).run();
  } else {
    leave_registers<40>();
    Producer<kDim, kFormat>(args, shared_address(shared)).run();
  }
}

template <int kDim, KvFormat kFormat>
void PairKernel<kDim, kFormat>::prepare(int shared_bytes) {
  static_cast<void>(shared_bytes);  // 9.0 has enough
  for (auto* kernel : {pair_kernel<kDim, kFormat, false>, pair_kernel<kDim, kFormat, true>}) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                               PairLayout<kDim, kFormat>::kBytes),
          "attention");
  }
}

template <int kDim, KvFormat kFormat>
void PairKernel<kDim, kFormat>::launch(const TreeAttentionArguments& args, const TreeGrid& grid,
                                       cudaStream_t stream) {
  auto* kernel =
      args.cap_factor > 0 ? pair_kernel<kDim, kFormat, true> : pair_kernel<kDim, kFormat, false>;
  launch_early(kernel, dim3(static_cast<unsigned>(grid.workers)), kThreads,
               static_cast<std::size_t>(PairLayout<kDim, kFormat>::kBytes), stream, args);
}

}  // namespace dendrite::cuda
