#include "backend/cuda/experts/packed_experts.cuh"

template const dendrite::cuda::packed::ExpertKernels&
dendrite::cuda::packed::expert_kernels_of<dendrite::cuda::packed::Q4Raised>();
