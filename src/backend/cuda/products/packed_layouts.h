#pragma once

#include <algorithm>
#include <array>

#include "backend/cuda/products/packed_layout.h"

// Which layouts of packed weights there are kernels for. A layout is a line here, one in the list,
// and two files of one statement, packed_*.cu, that make its kernels: here and in experts/.
namespace dendrite::cuda::packed {

/// A layout as a type, with its numbers for device code.
template <PackedCodes kCodes, GroupScales kOfScales, std::int16_t kGroup, bool kMinimum,
          bool kPoint = false>
struct Layout {
  static constexpr PackedLayout kLayout{kCodes, kOfScales, kGroup, kMinimum, kPoint};
  static constexpr int kTileBytes = kLayout.tile_bytes();
  static constexpr int kCodeBytes = kLayout.code_bytes();
  static constexpr int kRowBytes = kLayout.row_bytes();
  static constexpr int kScalesAt = kLayout.scales_at();
  static constexpr int kMinimumsAt = kLayout.minimums_at();
  static constexpr int kScaleAt = kLayout.scale_at();
  static constexpr int kMinimumAt = kLayout.minimum_at();
};
using Q4 = Layout<PackedCodes::kNibbles, GroupScales::kF16, 32, false>;
using Q4Minimums = Layout<PackedCodes::kNibbles, GroupScales::kF16, 32, true>;
using Q4Raised = Layout<PackedCodes::kRaised, GroupScales::kF16, 32, true>;
using Q4TwoLevels = Layout<PackedCodes::kNibbles, GroupScales::kTwoLevels, 32, true>;
using Q4Of128 = Layout<PackedCodes::kNibbles, GroupScales::kF32, 128, true, true>;
using Q4Short128 = Layout<PackedCodes::kNibbles, GroupScales::kF32, 128, false>;
using Q4Points = Layout<PackedCodes::kNibbles, GroupScales::kF16, 32, true, true>;
using Mxfp4 = Layout<PackedCodes::kE2M1, GroupScales::kF16, 32, false>;
using Nvfp4 = Layout<PackedCodes::kE2M1, GroupScales::kF32, 16, false>;
using Q8 = Layout<PackedCodes::kBytes, GroupScales::kF16, 32, false>;
using Q8TwoLevels = Layout<PackedCodes::kBytes, GroupScales::kTwoLevels, 16, false>;
using Q8Minimums = Layout<PackedCodes::kBytes, GroupScales::kTwoLevels, 16, true>;
using Q8Of128 = Layout<PackedCodes::kBytes, GroupScales::kF32, 128, false>;
using Fp8 = Layout<PackedCodes::kE4M3, GroupScales::kF32, 128, false>;
using Mxfp8 = Layout<PackedCodes::kE4M3, GroupScales::kPowers, 32, false>;

/// A list of them.
template <class... Q>
struct Layouts {
  static constexpr std::array kAll{Q::kLayout...};
  static constexpr bool has(const PackedLayout& layout) {
    return std::ranges::find(kAll, layout) != kAll.end();
  }
};
using Compiled = Layouts<Q4, Q4Minimums, Q4Raised, Q4TwoLevels, Q4Of128, Q4Short128, Q4Points,
                         Mxfp4, Nvfp4, Q8, Q8TwoLevels, Q8Minimums, Q8Of128, Fp8, Mxfp8>;

}  // namespace dendrite::cuda::packed
