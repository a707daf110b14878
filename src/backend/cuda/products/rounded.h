#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "backend/tensor.h"

// Inputs of products: bf16 rows of `ld` values (a multiple of 8), zero-padded, 16-byte aligned.
namespace dendrite::cuda {

void launch_round_rows(void* out, std::int64_t ld, Tensor x, cudaStream_t stream);
/// rms_norm of rows gather[i] of x (null: of all x.rows). x and norm 16-byte aligned.
void launch_norm_rows(void* out, std::int64_t ld, Tensor x, const std::int32_t* gather,
                      const float* norm, float eps, cudaStream_t stream);
bool takes_norm_rows(const Tensor& x);
/// silu_mul; gate_up 16-byte aligned, its stride and half of its columns multiples of 4.
void launch_silu_rows(void* out, std::int64_t ld, Tensor gate_up, cudaStream_t stream);

}  // namespace dendrite::cuda
