#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/products/block_scaled.h"
#include "backend/tensor.h"

// Inputs of products with block-scaled weights: rows rounded to MXFP8 or NVFP4. A group's codes and
// its scale depend on its values alone, and on `whole` of NVFP4, what all scales are multiplied
// with.
namespace dendrite::cuda {

/// Rows of bf16, `stride` values apart, on 8 bytes.
void launch_block_scaled_rows(const BlockScaledRows& out, float whole, const void* rows,
                              std::int64_t stride, cudaStream_t stream);
/// The same of launch_norm_rows()' result, which is not stored.
void launch_block_scaled_norm_rows(const BlockScaledRows& out, float whole, Tensor x,
                                   const std::int32_t* gather, const float* norm, float eps,
                                   cudaStream_t stream);

}  // namespace dendrite::cuda
