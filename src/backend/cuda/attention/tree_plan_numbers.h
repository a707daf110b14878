#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "backend/cuda/attention/tree_plan.h"

// What the sources of TreePlan share.
namespace dendrite::cuda {

inline constexpr auto kBlock = static_cast<std::int32_t>(kBlockTokens);
inline constexpr std::int32_t kMaxTileBlocks = 256;
// Of a tile whose rows have pages of their own, at most:
inline constexpr std::int64_t kBundleRows = 32;  // packed
inline constexpr std::int32_t kBundleBlocks = 8;

inline std::int32_t narrow(std::int64_t value) {
  return static_cast<std::int32_t>(value);
}
inline std::size_t at(std::int64_t index) {
  return static_cast<std::size_t>(index);
}
inline std::int32_t blocks_of(std::int32_t begin, std::int32_t end) {
  return (end - begin + kBlock - 1) / kBlock;
}

/// Rows of a bundle, at most.
inline std::int64_t bundle_rows(const TreePlan::Shape& shape) {
  return std::max<std::int64_t>(1, std::min(kBundleRows, shape.tile_rows) / shape.slice_heads);
}

}  // namespace dendrite::cuda
