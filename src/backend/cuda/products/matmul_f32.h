#pragma once

#include <cuda_runtime.h>

#include "backend/cuda/products/weight.h"
#include "backend/tensor.h"

namespace dendrite::cuda {

/// out = or += x W^T + bias in f32, k ascending, one accumulator an output. Any weight dtype.
void launch_matmul_f32(Tensor out, Tensor x, const CudaWeight& weight, const float* bias, bool add,
                       cudaStream_t stream);

}  // namespace dendrite::cuda
