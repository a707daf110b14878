#pragma once

#include <cuda_runtime.h>

#include "backend/cuda/attention/tree_arguments.h"

namespace dendrite::cuda {

/// What a launch needs to know of the device.
struct TreeGrid {
  std::int64_t workers = 0;  // TreePlan::Shape::workers
  int shared_bytes = 0;      // that a thread block may have
};

// The attention kernels of a head size and of what pages hold (bf16 or FP8), each instantiated in a
// file of its own, with soft caps and without. All give the same bits for the same values.

/// Tiles by mma.sync, two thread blocks a multiprocessor: tree_tile_kernel.cuh.
template <int kDim, KvFormat kFormat>
struct TileKernel {
  /// Once.
  static void prepare(int shared_bytes);
  static void launch(const TreeAttentionArguments& args, const TreeGrid& grid, cudaStream_t stream);
};

/// Pairs of tiles by wgmma, for compute capability 9.0, one thread block a multiprocessor:
/// tree_pair_kernel_sm90.cuh.
template <int kDim, KvFormat kFormat>
struct PairKernel {
  /// Once.
  static void prepare(int shared_bytes);
  static void launch(const TreeAttentionArguments& args, const TreeGrid& grid, cudaStream_t stream);
};

/// Tiles of wide heads by wgmma, for compute capability 9.0, K and V in bf16, one thread block a
/// multiprocessor: tree_wide_kernel_sm90.cuh.
template <int kDim>
struct WideKernel {
  /// Once.
  static void prepare(int shared_bytes);
  static void launch(const TreeAttentionArguments& args, const TreeGrid& grid, cudaStream_t stream);
};

}  // namespace dendrite::cuda
