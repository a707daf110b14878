#include "backend/cuda/attention/tree_tile_kernel.cuh"

template struct dendrite::cuda::TileKernel<256, dendrite::KvFormat::kFP8>;
