#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

namespace dendrite {

/// Attention is cut at absolute positions, whoever runs and wherever the tree forked.
/// A canonical block: the unit whose softmax arithmetic depends on position alone.
inline constexpr std::int64_t kBlockTokens = 128;
/// A super-block is folded from its first block on by one running softmax (max, sum, weighted V),
/// started afresh at each super-block; the partial results are then folded left to right.
/// Cuts: multiples of 256 below 4096, of 1024 below 32768, of 4096 above: short prefixes are cut
/// fine enough to keep many threads busy, and long ones leave few partial results.
constexpr std::int64_t super_block_tokens(std::int64_t position) {
  return position < 4096 ? 256 : position < 32768 ? 1024 : 4096;
}
constexpr std::int64_t super_block_begin(std::int64_t position) {
  return position / super_block_tokens(position) * super_block_tokens(position);
}
constexpr std::int64_t super_block_end(std::int64_t position) {
  return super_block_begin(position) + super_block_tokens(position);
}

/// Largest head_dim that backends take.
inline constexpr std::int64_t kMaxHeadDim = 576;

/// Which positions up to its own a query sees: the last `size`, or those of its own chunk of
/// `size`, where positions are cut at multiples of it.
struct AttentionWindow {
  std::int64_t size = 0;  // 0: all
  bool chunked = false;

  constexpr AttentionWindow(std::int64_t positions = 0, bool in_chunks = false)
      : size(positions), chunked(in_chunks) {}
  constexpr bool operator==(const AttentionWindow&) const = default;

  /// What is before this position is not seen from `position`.
  constexpr std::int64_t first_seen(std::int64_t position) const {
    if (size == 0) return 0;
    return chunked ? position / size * size : std::max<std::int64_t>(0, position - size + 1);
  }
  /// Positions from this one on see nothing that is before `end`. Requires a size.
  constexpr std::int64_t unseen_from(std::int64_t end) const {
    return chunked ? (end + size - 1) / size * size : end + size - 1;
  }
};

/// One work item: a run of whole canonical blocks inside one super-block, and the contiguous range
/// of query rows that see them through the same pages.
struct AttentionItem {
  std::int64_t begin = 0;  // first position, a multiple of kBlockTokens
  std::int64_t end = 0;  // one past the last position held by these pages (may end inside a block)
  std::int32_t first_page =
      0;  // index into AttentionPlan::pages; holds positions begin.. page by page
  std::int32_t row_begin = 0;
  std::int32_t row_end = 0;
};

/// The live tree as attention sees it, one for all layers with the same window.
/// Row t's query at positions[t] sees key position j iff j <= positions[t] and
/// j >= window.first_seen(positions[t]), through the items whose range holds t.
/// Guarantees: for every row, its items are disjoint, in ascending order, and cover all visible
/// positions; blocks that a row sees nothing of are in none of its items; keys of positions beyond
/// a row's own, and of slots past `end`, may hold anything (NaN included) and must be selected
/// away. Pages of positions before the row's window may be in an item's block: they are valid
/// memory.
struct AttentionPlan {
  struct SuperBlock {
    std::int32_t item_begin = 0;
    std::int32_t item_end = 0;  // items of one super-block, ordered by (begin, row_begin)
  };
  AttentionWindow window;
  std::vector<std::int64_t> positions;   // [rows]
  std::vector<AttentionItem> items;      // ordered by super-block
  std::vector<SuperBlock> super_blocks;  // ascending positions
  std::vector<std::int32_t> pages;

  /// What the planner needs in order to tell that only positions have changed since; one a row, or
  /// none. Nobody else reads it.
  struct Source {
    std::uint64_t stamp = 0;     // of the row's page table
    std::int32_t settled = 0;    // its entries that hold as long as the stamp is the same
    std::int32_t last_page = 0;  // that of the row's position
  };
  std::vector<Source> sources;
};

}  // namespace dendrite
