#include "backend/cuda/tree_tile_kernel.cuh"

template struct dendrite::cuda::TileKernel<64>;
