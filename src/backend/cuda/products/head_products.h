#pragma once

#include <cuda_runtime.h>

#include "backend/ops.h"

namespace dendrite::cuda {

/// Whether launch_head_products takes them: plain bf16 weights, pieces of 16 bytes.
bool fits_head_products(const HeadProducts& args);
/// Backend::head_products, in bf16, for any number of rows by one order of sums. Requires
/// fits_head_products.
void launch_head_products(const HeadProducts& args, cudaStream_t stream);
void launch_copy_heads(const HeadCopies& args, cudaStream_t stream);

}  // namespace dendrite::cuda
