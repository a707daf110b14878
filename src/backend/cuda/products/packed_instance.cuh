#pragma once

#include "backend/cuda/products/packed_kernel.cuh"
#include "backend/cuda/products/packed_wide.cuh"

// All kernels of a layout: kernels_of(), for the files packed_*.cu that instantiate it. Devices
// before 9.0 have no packed weights, so the kernels are empty there.
namespace dendrite::cuda::packed {

/// A block a token, a warp a tile of its row; lanes of other rows decode for nothing.
template <class Q>
__global__ void embed_packed_kernel(const Embed args, int tiles_k) {
#if __CUDA_ARCH__ >= 900
  std::int32_t token = args.tokens[blockIdx.x];
  if (token < 0) token = args.drawn[-1 - token];  // PassInputs::token_of_draw
  const int lane = static_cast<int>(threadIdx.x) % 32;
  float* const out = args.out + blockIdx.x * args.stride;
  for (int tile = static_cast<int>(threadIdx.x) / 32; tile < tiles_k;
       tile += static_cast<int>(blockDim.x) / 32) {
    const std::int64_t at = std::int64_t{token / 8} * tiles_k + tile;
    const LaneTile<Q> values(args.weight + at * Q::kTileBytes, lane, args.less);
    if (lane / 4 != token % 8) continue;
    const int column = tile * PackedLayout::kColumns + lane % 4 * 2;
#pragma unroll
    for (int step = 0; step < 16; ++step) {
      const uint2 pairs = values.step(step);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int to = column + step * 16 + i / 2 * 8 + i % 2;
        const std::uint32_t pair = i < 2 ? pairs.x : pairs.y;
        if (to < args.cols) {
          out[to] = __uint_as_float(i % 2 == 0 ? pair << 16 : pair & 0xffff0000u);
        }
      }
    }
  }
#endif
}

constexpr unsigned kThreads = 256;

template <class Q>
void launch_embed_packed(const Embed& args, cudaStream_t stream) {
  embed_packed_kernel<Q>
      <<<static_cast<unsigned>(args.rows), kThreads, 0, stream>>>(args, tiles_of(args.cols));
}

template <class Q>
const Kernels& kernels_of() {
  static const Kernels kernels{
      Q::kLayout,
      {packed_kernel<Q, 1, 1>, packed_kernel<Q, 2, 1>, packed_kernel<Q, 4, 1>},
      packed_kernel<Q, 1, 2>,
      {packed_wide_kernel<Q, 64>, packed_wide_kernel<Q, 128>},
      launch_embed_packed<Q>};
  return kernels;
}

}  // namespace dendrite::cuda::packed
