#pragma once

#include <cuda_runtime.h>

#include "backend/cuda/few_rows.h"

namespace dendrite::cuda {

/// Most rows that launch_chain takes.
inline constexpr std::int64_t kChainRows = 64;

/// Whether launch_chain may be tried with this weight: bf16, columns in whole tiles of 64, compute
/// capability 9.0.
bool chain_takes(const CudaWeight& weight);

/// Whether launch_chain takes Epilogue::kRope with these arguments: as rotates_in_product(), heads
/// of a multiple of 8 dims.
bool chain_rotates(const RopeArguments& rope);

/// Every output is one sum over ascending k in steps of 16, then (+ bias), then added: the order of
/// cuBLASLt without split-K, whose bits it gives (see ChainCheck) where rows of f32 results begin
/// on 16 bytes. Then kRope does what launch_rope_and_store does, to the bit. Throws Error when the
/// driver refuses to describe the matrices.
void launch_chain(const FewRowsProduct& product, cudaStream_t stream);

}  // namespace dendrite::cuda
