#pragma once

#include <cuda_runtime.h>

#include "backend/cuda/few_rows.h"

namespace dendrite::cuda {

/// Most rows that launch_skinny takes.
inline constexpr std::int64_t kSkinnyRows = 8;

/// Whether launch_skinny takes this weight: bf16, whole tiles of 16 outputs and 32 k, on a device
/// with 180 KB of shared memory a block.
bool skinny_takes(const CudaWeight& weight);

/// Whether launch_skinny takes Epilogue::kRope with these arguments: as rotates_in_product(), heads
/// of a multiple of 16 dims.
bool skinny_rotates(const RopeArguments& rope);

/// k is cut into slices whose sums meet in a fixed order, so not the order of cuBLASLt and
/// launch_chain. Each row's bits depend on that row and the weight alone.
void launch_skinny(const FewRowsProduct& product, cudaStream_t stream);

}  // namespace dendrite::cuda
