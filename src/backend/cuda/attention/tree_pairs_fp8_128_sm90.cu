#include "backend/cuda/attention/tree_pair_kernel_sm90.cuh"

template struct dendrite::cuda::PairKernel<128, dendrite::KvFormat::kFP8>;
