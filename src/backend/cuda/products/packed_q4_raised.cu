#include "backend/cuda/products/packed_instance.cuh"

template const dendrite::cuda::packed::Kernels&
dendrite::cuda::packed::kernels_of<dendrite::cuda::packed::Q4Raised>();
