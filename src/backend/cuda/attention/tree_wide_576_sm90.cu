#include "backend/cuda/attention/tree_wide_kernel_sm90.cuh"

template struct dendrite::cuda::WideKernel<576>;
