#include "backend/cuda/attention/tree_tile_kernel.cuh"

template struct dendrite::cuda::TileKernel<320, dendrite::KvFormat::kBF16>;
