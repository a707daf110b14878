#pragma once

#include <cuda.h>
#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/products/packed_layout.h"

// Which layouts of packed weights there are kernels for. A layout is a line here and a file of one
// line, packed_*.cu, that makes them.
namespace dendrite::cuda::packed {

struct Arguments;

/// Rows [first, first + rows) of a packed matrix.
struct Unpack {
  const std::uint8_t* weight = nullptr;
  std::int64_t first = 0;  // a multiple of 8
  std::int64_t rows = 0;
  std::int64_t cols = 0;
  std::uint32_t less = 0;  // 128 - the least nibble as a bf16, twice
  void* out = nullptr;     // bf16 [rows, ld]; columns from cols to ld become zeros
  std::int64_t ld = 0;
};

/// As launch_embed(), of a packed table.
struct Embed {
  const std::uint8_t* weight = nullptr;
  std::int64_t cols = 0;
  std::uint32_t less = 0;
  const std::int32_t* tokens = nullptr;
  const std::int32_t* drawn = nullptr;
  float* out = nullptr;
  std::int64_t rows = 0;
  std::int64_t stride = 0;
};

struct Kernels {
  PackedLayout layout{};
  /// Of up to 64 rows, [tiles of a warp - 1][rows: up to 16, 32, 64].
  void (*products[2][3])(CUtensorMap, Arguments) = {};
  /// Of up to 128 rows, on compute capability 9.0.
  void (*wide)(CUtensorMap, Arguments) = nullptr;
  void (*unpack)(const Unpack&, cudaStream_t) = nullptr;
  void (*embed)(const Embed&, cudaStream_t) = nullptr;
};

/// A layout as a type, with its numbers for device code.
template <PackedCodes kCodes, GroupScales kOfScales, std::int16_t kGroup, bool kMinimum>
struct Layout {
  static constexpr PackedLayout kLayout{kCodes, kOfScales, kGroup, kMinimum};
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
using Q4TwoLevels = Layout<PackedCodes::kNibbles, GroupScales::kTwoLevels, 32, true>;
using Q4Of128 = Layout<PackedCodes::kNibbles, GroupScales::kF32, 128, true>;
using Q4Short128 = Layout<PackedCodes::kNibbles, GroupScales::kF32, 128, false>;
using Q8 = Layout<PackedCodes::kBytes, GroupScales::kF16, 32, false>;
using Q8TwoLevels = Layout<PackedCodes::kBytes, GroupScales::kTwoLevels, 16, false>;
using Q8Minimums = Layout<PackedCodes::kBytes, GroupScales::kTwoLevels, 16, true>;
using Q8Of128 = Layout<PackedCodes::kBytes, GroupScales::kF32, 128, false>;
using Fp8 = Layout<PackedCodes::kE4M3, GroupScales::kF32, 128, false>;

template <class Q>
const Kernels& kernels_of();

/// Those of a layout; null: there are none.
const Kernels* find_kernels(const PackedLayout& layout);

}  // namespace dendrite::cuda::packed
