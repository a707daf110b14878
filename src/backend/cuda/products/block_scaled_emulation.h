#pragma once

#include <cmath>
#include <cstdint>

#include "backend/cuda/products/block_scaled.h"
#include "backend/cuda/products/block_scaled_numbers.h"

// What the instructions of block_scaled_mma.cuh compute, by ordinary arithmetic, from the words
// that each lane of a warp hands in. So kernels made of them run and are tested on any GPU, and
// their layouts on a host without one.
//
// Sums of a scale's codes are exact here; the instructions may round them in other places.
namespace dendrite::cuda {

/// A lane's four results of c + (a scales_a) (b scales_b), added to `c`.
/// Lanes: left(lane, reg), right(lane, reg), left_scales(lane), right_scales(lane) give what a lane
/// has handed in; all lanes ask at once. kByte: the byte of scale words that is meant where the
/// instruction takes one scale a row (byte-id).
template <BlockFormat kFormat, int kByte, class Lanes>
DENDRITE_ANY_SIDE inline void emulate_multiply_add(float (&c)[4], int lane, const Lanes& lanes) {
  using Traits = BlockTraits<kFormat>;
  constexpr int kBits = 32 / Traits::kWordColumns;
  constexpr int kScales = Traits::kStepScales;
  constexpr int kWords = 8 / kScales;  // of a group
  for (int i = 0; i < 4; ++i) {
    const int below = i / 2;             // whether the row is one of the last eight
    const int row_lanes = lane / 4 * 4;  // the four that have the row's codes
    const int column_lanes = result_column(lane, i) * 4;
    const std::uint32_t left_scales = lanes.left_scales(row_lanes + below);
    const std::uint32_t right_scales = lanes.right_scales(column_lanes);
    for (int group = 0; group < kScales; ++group) {
      float sum = 0;
      for (int word = group * kWords; word < (group + 1) * kWords; ++word) {
        const std::uint32_t a = lanes.left(row_lanes + word % 4, below + word / 4 * 2);
        const std::uint32_t b = lanes.right(column_lanes + word % 4, word / 4);
        for (int k = 0; k < Traits::kWordColumns; ++k) {
          constexpr std::uint32_t kMask = (1u << kBits) - 1;
          sum = fmaf(code_number<kFormat>(a >> k * kBits & kMask),
                     code_number<kFormat>(b >> k * kBits & kMask), sum);
        }
      }
      const int byte = kScales == 1 ? kByte : group;
      const float left = scale_number<kFormat>(left_scales >> 8 * byte & 255u);
      const float right = scale_number<kFormat>(right_scales >> 8 * byte & 255u);
      // Both together may be beyond an f32's range where the product is not.
      c[i] = fmaf(sum * left, right, c[i]);
    }
  }
}

}  // namespace dendrite::cuda
