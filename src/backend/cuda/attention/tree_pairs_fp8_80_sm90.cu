#include "backend/cuda/attention/tree_pair_kernel_sm90.cuh"

template struct dendrite::cuda::PairKernel<80, dendrite::KvFormat::kFP8>;
