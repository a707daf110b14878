#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/products/weight.h"
#include "backend/ops.h"
#include "backend/tensor.h"

// Launchers of the ops on rows in f32: see Backend, whose checks are the caller's.
namespace dendrite::cuda {

/// out[t] = row tokens[t] of the weight, widened. `drawn`: tokens of draws, see
/// PassInputs::token_of_draw.
void launch_embed(Tensor out, const std::int32_t* tokens, const std::int32_t* drawn,
                  const CudaWeight& weight, cudaStream_t stream);
void launch_rms_norm(Tensor out, Tensor x, const float* weight, float eps, cudaStream_t stream);
void launch_activate(Tensor out, Tensor gate_up, const Activation& activation, cudaStream_t stream);
void launch_scale(Tensor x, float factor, float cap, cudaStream_t stream);
void launch_scale_rows(Tensor x, const float* factors, cudaStream_t stream);
void launch_add_normed(Tensor out, Tensor x, const float* weight, float eps, float factor,
                       cudaStream_t stream);
void launch_gather(Tensor out, Tensor x, const std::int32_t* rows, cudaStream_t stream);

}  // namespace dendrite::cuda
