#pragma once

#include <cstdint>
#include <vector>

#include "backend/attention_plan.h"

// For kernels, too. All else here is of the host, and compiles without CUDA.
#ifdef __CUDACC__
#define DENDRITE_HOST_DEVICE __host__ __device__
#else
#define DENDRITE_HOST_DEVICE
#endif

namespace dendrite::cuda {

// How the tensor-core attention sums, by absolute position alone: a block of kBlockTokens from a
// fresh state, blocks of a run from left to right, runs of a group, groups of the context. A
// partial result stands for a segment: whole runs from a group's begin, or blocks from a run's
// begin, or one block. So folding partials level by level gives the same bits wherever work was
// cut.
inline constexpr std::int64_t kRunTokens = 512;
inline constexpr std::int64_t kGroupTokens = 4096;

/// Packed rows (rows x query heads of a KV head) that one tile has at most, for kernels without
/// warpgroups. Wide heads leave room for fewer in registers and shared memory.
DENDRITE_HOST_DEVICE constexpr std::int64_t tile_rows(std::int64_t head_dim) {
  return head_dim <= 128 ? 64 : head_dim <= 256 ? 32 : 16;
}

/// For those with warpgroups.
inline constexpr std::int64_t kWarpgroupRows = 64;

/// Query heads of a KV head as tiles pack them: all at once, or in slices if they are more than a
/// tile has rows. Slices have a size; where it does not divide the heads the last one begins
/// earlier, and its first heads, which are in two slices, get the same bits twice.
struct HeadSlices {
  std::int64_t heads = 1;  // of a slice
  std::int64_t count = 1;  // of a KV head

  bool operator==(const HeadSlices&) const = default;
};
constexpr HeadSlices slice_heads(std::int64_t group, std::int64_t rows) {
  const std::int64_t count = (group + rows - 1) / rows;
  return {(group + count - 1) / count, count};
}

/// A canonical block as rows [row_begin, row_end) have it.
struct TreeBlock {
  std::int32_t first_page = 0;  // index into AttentionPlan::pages
  std::int32_t begin = 0;       // its first position
  std::int32_t end = 0;         // one past the last that any of the rows sees
  std::int32_t row_begin = 0;
  std::int32_t row_end = 0;
};

/// Work of one thread block for each slice of heads: rows that see tokens [begin, end), through the
/// same pages or, with Shape::pairs, each through one of several: then a block of positions is in
/// the list once for each of them.
struct TreeTile {
  std::int32_t row_begin = 0;
  std::int32_t row_count = 0;
  std::int32_t begin = 0;        // a multiple of kBlockTokens
  std::int32_t end = 0;          // one past the last token that any of its rows sees
  std::int32_t low = 0;          // tokens before this one are seen by none of its rows
  std::int32_t first_block = 0;  // index into TreePlan::blocks
  std::int32_t block_count = 0;
  std::int32_t first_slot = 0;  // of partial results: one a row and segment, segment by segment
  std::int32_t first_page = 0;  // of the first block
};

/// One partial result of a row.
struct TreePart {
  std::int32_t slot = 0;
  std::int32_t begin = 0;  // first token of its segment
};

/// The end of the segment that begins at `position` in a tile that ends at `end`. A tile that ends
/// inside a block is the last one of its rows, so nothing goes on from there.
DENDRITE_HOST_DEVICE constexpr std::int32_t segment_end(std::int32_t position, std::int32_t end) {
  constexpr auto kBlock = static_cast<std::int32_t>(kBlockTokens);
  constexpr auto kRun = static_cast<std::int32_t>(kRunTokens);
  constexpr auto kGroup = static_cast<std::int32_t>(kGroupTokens);
  const std::int32_t whole_runs = end % kBlock != 0 ? end : end / kRun * kRun;
  std::int32_t segment = position + kBlock;
  if (position % kRun == 0) segment = position + kRun;
  if (position % kGroup == 0 && whole_runs > position) {
    segment = position + kGroup < whole_runs ? position + kGroup : whole_runs;
  }
  return segment < end ? segment : end;
}

/// With pairs, which work a worker does in its round: every other round is dealt out backwards,
/// since heavy ones come first.
template <typename T>
DENDRITE_HOST_DEVICE constexpr T dealt_work(T round, T worker, T workers) {
  return round * workers + (round % 2 == 0 ? worker : workers - 1 - worker);
}

/// An AttentionPlan as the tensor-core kernels take it: flat arrays, heavy tiles first.
///
/// Rows are cut into tiles, and each tile's tokens run on through items as long as they hold its
/// rows, or rows of one branch that see nothing there by their position. Then tiles are cut along
/// the tokens until there are enough for the device. No cut changes a bit of the result.
class TreePlan {
 public:
  struct Shape {
    std::int64_t tile_rows = 64;   // packed rows of a tile, at most
    std::int64_t slice_heads = 1;  // query heads that a row packs; at most tile_rows
    std::int64_t slices = 1;       // of all KV heads: tiles are worked on once for each
    std::int64_t page_tokens = 16;
    std::int64_t workers = 264;  // thread blocks that run at once
    bool pairs = false;          // work is a pair of tiles
    bool wide = false;           // a block of its heads takes longer than the merge of a part

    bool operator==(const Shape&) const = default;
  };

  /// Overwrites, reusing memory. Cost: O(rows + blocks of tiles + parts); O(items + rows + tiles)
  /// where each row is one position further than in the plan of the last call, within the same
  /// blocks, and nothing else has changed.
  void build(const AttentionPlan& plan, const Shape& shape);

  struct Counts {
    std::int32_t tiles = 0;
    std::int32_t rows = 0;
  };
  const std::vector<Counts>& counts() const { return counts_; }  // one
  /// Then tiles without rows, where each worker stops that goes on to its next. With Shape::pairs
  /// tiles 2 i and 2 i + 1 are one worker's at the same time: two halves of the rows that see the
  /// same tokens, or tiles of nothing in common, or the second without rows.
  const std::vector<TreeTile>& tiles() const { return tiles_; }
  /// Of each tile, ascending.
  const std::vector<TreeBlock>& blocks() const { return blocks_; }
  /// Parts of row r: [row_parts[r], row_parts[r + 1]), ascending where the row sees something.
  const std::vector<std::int32_t>& row_parts() const { return row_parts_; }
  const std::vector<TreePart>& parts() const { return parts_; }
  std::int64_t slots() const { return slots_; }

 private:
  /// A tile before it is cut along the tokens.
  struct Chain {
    std::int32_t row_begin = 0;
    std::int32_t row_end = 0;
    std::int32_t begin = 0;
    std::int32_t end = 0;
    std::int32_t low = 0;
    // All its rows see what ends after `seen_from` and begins before `seen_until`.
    std::int32_t seen_from = 0;
    std::int32_t seen_until = 0;
    std::int32_t blocks = 0;
    std::int32_t first_link = 0;
    std::int32_t last_link = 0;
  };
  /// Chains one after the other that are cut together: of the same blocks' positions, for few rows
  /// each.
  struct Bundle {
    std::int32_t first_chain = 0;
    std::int32_t chains = 0;
  };
  struct Link {
    std::int32_t item = 0;
    std::int32_t next = -1;
  };
  struct Segment {
    std::int32_t row_begin = 0;
    std::int32_t rows = 0;
    std::int32_t begin = 0;
    std::int32_t end = 0;
    std::int32_t slot = 0;
    bool seen_by_all = false;  // of its rows
  };

  bool advance(const AttentionPlan& plan, const Shape& shape);
  void find_stretches(const AttentionPlan& plan);
  void add_item(const AttentionPlan& plan, std::int32_t item);
  void add_to_chain(std::int32_t row_begin, std::int32_t row_end, const AttentionItem& item,
                    std::int32_t index);
  std::int64_t bundle_and_size(std::int64_t units, const Shape& shape, AttentionWindow window);
  std::int64_t bundle_and_size_pairs(const Shape& shape, AttentionWindow window);
  std::int64_t time_of_tiles(std::int64_t size, const Shape& shape);
  std::int64_t time_of_pairs(std::int64_t size, const Shape& shape);
  void count_kinds();
  void finish_chains(const AttentionPlan& plan, const Shape& shape);
  void bundle_chains(std::int64_t most, const Shape& shape);
  void list_blocks(const AttentionPlan& plan, const Bundle& bundle, std::int32_t first_block,
                   std::int64_t page_tokens);
  void cut(const Bundle& bundle, std::int32_t first_block, std::int32_t tile_tokens);
  void add_segments(const Chain& chain, std::int32_t row_begin, std::int32_t rows,
                    std::int32_t begin, std::int32_t end);
  void sort_works();
  void list_tiles(const Shape& shape);
  void list_parts(const AttentionPlan& plan);

  /// What a worker does at a time: a tile, and perhaps another for the same tokens.
  struct Work {
    TreeTile tile;
    std::int32_t second_rows = 0;  // of the other one, after the first one's rows
    std::int32_t second_slot = 0;
  };

  /// Bundles that have as many blocks and chains, and more rows than a tile or not.
  struct BundleKind {
    std::int64_t blocks = 0;
    std::int64_t chains = 0;
    bool shared = false;
    std::int64_t count = 0;
    std::int64_t odd = 0;  // so many times an odd number of them follow one another
  };

  // Of the last build: what it was made of, and where blocks end with their rows, not by the cut.
  Shape shape_;
  AttentionWindow window_;
  std::vector<std::int64_t> positions_;
  std::vector<AttentionItem> items_;
  std::vector<std::int32_t> growing_;

  std::int64_t tile_rows_ = 1;
  std::int64_t work_rows_ = 1;               // of both tiles of a pair
  std::vector<std::int32_t> stretch_begin_;  // by row: the run of consecutive positions it is in
  std::vector<std::int32_t> stretch_end_;
  bool long_stretches_ = false;  // of at least work_rows_ rows
  std::vector<Chain> chains_;
  std::vector<Link> links_;
  std::vector<std::int32_t> open_;  // by first row: its latest chain, or -1
  std::vector<Segment> segments_;
  std::vector<Bundle> bundles_;
  std::int64_t longest_ = 0;  // blocks of a chain
  std::vector<BundleKind> kinds_;
  std::vector<std::int32_t> kind_at_;  // by what makes a kind: its place in kinds_, or -1
  std::vector<std::int64_t> plain_;    // works of a size by blocks
  std::vector<std::int64_t> bundled_;
  std::vector<Work> works_;
  std::vector<std::int32_t> sorted_;  // works, heavy ones first
  std::vector<std::int32_t> by_size_;

  std::vector<Counts> counts_;
  std::vector<TreeTile> tiles_;
  std::vector<TreeBlock> blocks_;
  std::vector<std::int32_t> row_parts_;
  std::vector<TreePart> parts_;
  std::int64_t slots_ = 0;
};

}  // namespace dendrite::cuda
