// Rows for products with block-scaled weights. Floor: bytes moved over read bandwidth; at a few
// rows the latency of a launch.
#include "backend/cuda/products/block_scaled_rows.h"

#include "backend/cuda/base/e4m3.cuh"
#include "backend/cuda/products/block_scaled_numbers.h"
#include "backend/cuda/products/norm_rows.cuh"

namespace dendrite::cuda {
namespace {

/// The largest of what kLanes neighbouring lanes have.
template <int kLanes>
__device__ std::uint32_t largest(std::uint32_t value) {
#pragma unroll
  for (int width = kLanes / 2; width > 0; width /= 2) {
    value = max(value, __shfl_xor_sync(0xffffffffu, value, width));
  }
  return value;
}

/// Where rows are put: see norm_rows_kernel.
template <BlockFormat kFormat>
struct BlockScaledTarget {
  using Traits = BlockTraits<kFormat>;

  std::uint8_t* codes;
  std::uint8_t* scales;
  std::int64_t cols;
  float whole;

  BlockScaledTarget(const BlockScaledRows& out, float all)
      : codes(reinterpret_cast<std::uint8_t*>(out.data)),
        scales(reinterpret_cast<std::uint8_t*>(out.scales())),
        cols(out.cols),
        whole(all) {}

  __device__ void put(std::int64_t row, int column, uint2 four, bool stored) const {
    if (column >= cols) return;  // all of the warp
    const float values[] = {__uint_as_float(four.x << 16), __uint_as_float(four.x & 0xffff0000u),
                            __uint_as_float(four.y << 16), __uint_as_float(four.y & 0xffff0000u)};
    std::uint32_t most = 0;
    std::uint32_t scale = 0;
    if constexpr (kFormat == BlockFormat::kMxfp8) {
      for (const float value : values) most = max(most, finite_magnitude(value));
      scale = e4m3_scale_of(largest<Traits::kGroup / 4>(most));
      std::uint32_t word = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) word |= e4m3_code_of(values[i], scale) << 8 * i;
      if (stored) *reinterpret_cast<std::uint32_t*>(codes + row * cols + column) = word;
    } else {
      for (const float value : values) most = max(most, __float_as_uint(value) & 0x7fffffffu);
      const Nvfp4Rounding rounding(largest<Traits::kGroup / 4>(most), whole);
      scale = rounding.scale;
      std::uint32_t word = 0;
#pragma unroll
      for (int i = 0; i < 4; ++i) word |= e2m1_code(values[i] * rounding.factor) << 4 * i;
      if (stored) {
        *reinterpret_cast<std::uint16_t*>(codes + (row * cols + column) / 2) =
            static_cast<std::uint16_t>(word);
      }
    }
    if (column % Traits::kGroup == 0 && stored) {
      scales[(row * cols + column) / Traits::kGroup] = static_cast<std::uint8_t>(scale);
    }
  }
};

template <typename F>
void with_target(const BlockScaledRows& out, float whole, F launch) {
  if (out.is_e4m3()) {
    launch(BlockScaledTarget<BlockFormat::kMxfp8>(out, whole));
  } else {
    launch(BlockScaledTarget<BlockFormat::kNvfp4>(out, whole));
  }
}

}  // namespace

void launch_block_scaled_rows(const BlockScaledRows& out, float whole, const void* rows,
                              std::int64_t stride, cudaStream_t stream) {
  with_target(out, whole,
              [&](const auto& target) { launch_put(target, rows, stride, out.rows, stream); });
}

void launch_block_scaled_norm_rows(const BlockScaledRows& out, float whole, Tensor x,
                                   const std::int32_t* gather, const float* norm, float eps,
                                   cudaStream_t stream) {
  with_target(out, whole,
              [&](const auto& target) { launch_norm(target, x, gather, norm, eps, stream); });
}

}  // namespace dendrite::cuda
