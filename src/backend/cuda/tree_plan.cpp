#include "backend/cuda/tree_plan.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace dendrite::cuda {
namespace {

constexpr auto kBlock = static_cast<std::int32_t>(kBlockTokens);
constexpr std::int32_t kMaxTileBlocks = 256;
// Of a tile whose rows have pages of their own, at most:
constexpr std::int64_t kBundleRows = 32;  // packed
constexpr std::int32_t kBundleBlocks = 8;

std::int32_t narrow(std::int64_t value) {
  return static_cast<std::int32_t>(value);
}
std::size_t at(std::int64_t index) {
  return static_cast<std::size_t>(index);
}
std::int32_t blocks_of(std::int32_t begin, std::int32_t end) {
  return (end - begin + kBlock - 1) / kBlock;
}

/// Sees nothing before this position.
std::int64_t first_seen(std::int64_t position, std::int64_t window) {
  return window > 0 ? std::max<std::int64_t>(0, position - window + 1) : 0;
}

}  // namespace

void TreePlan::build(const AttentionPlan& plan, const Shape& shape) {
  tile_rows_ = std::max<std::int64_t>(1, kTileRows / shape.group);
  work_rows_ = shape.pairs ? 2 * tile_rows_ : tile_rows_;
  chains_.clear();
  links_.clear();
  open_.assign(plan.positions.size(), -1);
  find_stretches(plan);
  for (std::int32_t item = 0; item < std::ssize(plan.items); ++item) add_item(plan, item);
  finish_chains(plan, shape);
  sort_works();
  list_tiles(shape);
  list_parts(plan);
  counts_.assign(1, {narrow(std::ssize(tiles_)), narrow(std::ssize(plan.positions))});
  // A worker's next work is less than `workers`, with pairs less than twice that, past the last
  // one.
  const std::int64_t past = shape.pairs ? 2 * shape.workers : shape.workers;
  tiles_.resize(tiles_.size() + at((past / shape.kv_heads + 1) * (shape.pairs ? 2 : 1)));
}

/// Rows of consecutive positions, as prefills have: tiles of all items are cut at the same rows
/// there, so that they can run on from item to item.
void TreePlan::find_stretches(const AttentionPlan& plan) {
  const std::int32_t rows = narrow(std::ssize(plan.positions));
  stretch_begin_.resize(at(rows));
  stretch_end_.resize(at(rows));
  long_stretches_ = false;
  for (std::int32_t begin = 0; begin < rows;) {
    std::int32_t end = begin + 1;
    while (end < rows && plan.positions[at(end)] == plan.positions[at(end - 1)] + 1) ++end;
    long_stretches_ = long_stretches_ || end - begin >= work_rows_;
    for (std::int32_t row = begin; row < end; ++row) {
      stretch_begin_[at(row)] = begin;
      stretch_end_[at(row)] = end;
    }
    begin = end;
  }
}

void TreePlan::add_item(const AttentionPlan& plan, std::int32_t index) {
  const AttentionItem& item = plan.items[at(index)];
  const auto long_stretch = [&](std::int32_t row) {
    return long_stretches_ && stretch_end_[at(row)] - stretch_begin_[at(row)] >= work_rows_;
  };
  for (std::int32_t row = item.row_begin; row < item.row_end;) {
    std::int32_t begin = row;
    std::int32_t end = row + 1;
    if (long_stretch(row)) {
      const std::int32_t first = stretch_begin_[at(row)];
      const std::int32_t cell = narrow(first + (row - first) / work_rows_ * work_rows_);
      const std::int32_t cell_end = std::min(narrow(cell + work_rows_), stretch_end_[at(row)]);
      end = std::min(cell_end, item.row_end);
      row = end;
      // Positions ascend over the cell: if the row next to ours sees nothing here, none beyond
      // does.
      if (begin > cell && plan.positions[at(begin - 1)] < item.begin) begin = cell;
      if (end < cell_end && first_seen(plan.positions[at(end)], plan.window) >= item.end) {
        end = cell_end;
      }
    } else {
      const std::int32_t limit = std::min(narrow(row + work_rows_), item.row_end);
      if (!long_stretches_) end = limit;
      while (end < limit && !long_stretch(end)) ++end;
      row = end;
    }
    add_to_chain(begin, end, item, index);
  }
}

void TreePlan::add_to_chain(std::int32_t row_begin, std::int32_t row_end, const AttentionItem& item,
                            std::int32_t index) {
  const std::int32_t link = narrow(std::ssize(links_));
  links_.push_back({index, -1});
  const std::int32_t open = open_[at(row_begin)];
  if (open >= 0) {
    Chain& chain = chains_[at(open)];
    if (chain.row_end == row_end && chain.end == item.begin) {
      links_[at(chain.last_link)].next = link;
      chain.last_link = link;
      chain.end = narrow(item.end);
      return;
    }
  }
  open_[at(row_begin)] = narrow(std::ssize(chains_));
  chains_.push_back({row_begin, row_end, narrow(item.begin), narrow(item.end), 0, 0, link, link});
}

/// The largest power of two that leaves no worker idle; but whole runs, which leave few partial
/// results, as long as an eighth of the workers has something to do.
std::int64_t TreePlan::blocks_a_tile(std::int64_t units, std::int64_t workers) {
  std::int64_t tile_blocks = units / workers;
  if (units >= workers / 2) tile_blocks = std::max(tile_blocks, kRunTokens / kBlockTokens);
  tile_blocks = std::clamp<std::int64_t>(tile_blocks, 1, kMaxTileBlocks);
  return static_cast<std::int64_t>(std::bit_floor(static_cast<std::uint64_t>(tile_blocks)));
}

/// The size whose estimated time is least, in units of what a pair of tiles takes for a block.
std::int64_t TreePlan::blocks_a_pair(const Shape& shape) {
  kinds_.clear();
  for (const Bundle& bundle : bundles_) {  // neighbours are often alike
    const Chain& chain = chains_[at(bundle.first_chain)];
    const BundleKind kind{blocks_of(chain.begin, chain.end), bundle.chains,
                          chain.row_end - chain.row_begin > tile_rows_, 1};
    const bool same = !kinds_.empty() && kinds_.back().blocks == kind.blocks &&
                      kinds_.back().chains == kind.chains && kinds_.back().shared == kind.shared;
    if (same) {
      ++kinds_.back().count;
    } else {
      kinds_.push_back(kind);
    }
  }
  std::int64_t best = 1;
  double best_time = std::numeric_limits<double>::infinity();
  for (std::int64_t size = 1; size <= kMaxTileBlocks; size *= 2) {
    const double time = time_of_pairs(size, shape);
    if (time < best_time) {
      best_time = time;
      best = size;
    }
  }
  return best;
}

/// If tiles have up to `size` blocks. Workers take works in turns, back and forth, heavy ones
/// first.
double TreePlan::time_of_pairs(std::int64_t size, const Shape& shape) {
  constexpr double kTileTime = 1.5;     // beside its blocks
  constexpr double kBundledTime = 0.8;  // of a block that few rows see
  constexpr double kPartTime = 0.07;
  std::int64_t singles = 0;
  std::int64_t works = 0;
  std::int64_t parts = 0;
  for (const BundleKind& kind : kinds_) {
    const std::int64_t tiles = (kind.blocks + size - 1) / size * kind.count;
    works += tiles;
    if (!kind.shared) singles += tiles;
    // Of a run cut in two, the second half leaves a part a block.
    const std::int64_t runs = kind.blocks * kBlockTokens / kRunTokens;
    parts = std::max(parts, size == 1   ? kind.blocks
                            : size == 2 ? runs * 3
                                        : (kind.blocks + size - 1) / size);
  }
  const bool pair_up = works * shape.kv_heads > shape.workers;
  if (pair_up) works -= singles / 2;
  costs_.clear();
  const auto add = [&](const BundleKind& kind, std::int64_t blocks, std::int64_t count) {
    if (blocks == 0 || count == 0) return;
    if (pair_up && !kind.shared) count = (count + 1) / 2;
    const double steps = static_cast<double>(blocks * kind.chains);
    costs_.push_back(
        {(kind.chains > 1 ? kBundledTime : 1) * steps + kTileTime, count * shape.kv_heads});
  };
  for (const BundleKind& kind : kinds_) {
    add(kind, size, kind.blocks / size * kind.count);
    add(kind, kind.blocks % size, kind.count);
  }
  std::sort(costs_.begin(), costs_.end(),
            [](const Cost& a, const Cost& b) { return a.time > b.time; });
  double longest = 0;
  for (const std::int64_t worker : {std::int64_t{0}, shape.workers / 2, shape.workers - 1}) {
    double time = 0;
    std::int64_t first = 0;  // of the works that cost the same
    std::size_t cost = 0;
    for (std::int64_t round = 0; cost < costs_.size(); ++round) {
      const std::int64_t index = dealt_work<std::int64_t>(round, worker, shape.workers);
      while (cost < costs_.size() && index >= first + costs_[cost].count) {
        first += costs_[cost++].count;
      }
      if (cost < costs_.size()) time += costs_[cost].time;
    }
    longest = std::max(longest, time);
  }
  return longest + kPartTime * static_cast<double>(parts);
}

void TreePlan::finish_chains(const AttentionPlan& plan, const Shape& shape) {
  std::int64_t work = 0;
  for (Chain& chain : chains_) {
    std::int64_t low = std::numeric_limits<std::int64_t>::max();
    std::int64_t least = low;
    std::int64_t high = 0;
    for (std::int32_t row = chain.row_begin; row < chain.row_end; ++row) {
      const std::int64_t position = plan.positions[at(row)];
      low = std::min(low, first_seen(position, plan.window));
      least = std::min(least, position + 1);
      high = std::max(high, position + 1);
    }
    chain.low = narrow(low);
    chain.seen_until = plan.window == 0 ? narrow(least) : 0;
    chain.end = std::min(chain.end, narrow(high));
    work += blocks_of(chain.begin, chain.end);
  }
  bundle_chains(shape, plan.window);
  const std::int64_t tile_blocks =
      shape.pairs ? blocks_a_pair(shape) : blocks_a_tile(work * shape.kv_heads, shape.workers);
  const auto tile_tokens = static_cast<std::int32_t>(tile_blocks) * kBlock;
  blocks_.clear();
  segments_.clear();
  works_.clear();
  slots_ = 0;
  for (const Bundle& bundle : bundles_) {
    const std::int32_t first_block = narrow(std::ssize(blocks_));
    list_blocks(plan, bundle, shape.page_tokens);
    cut(bundle, first_block, tile_tokens);
  }
}

/// One chain each, unless workers would have many of those that few rows see: what a tile takes
/// beside its blocks counts for more than they do.
void TreePlan::bundle_chains(const Shape& shape, std::int64_t window) {
  const std::int64_t most_rows = std::max<std::int64_t>(1, kBundleRows / shape.group);
  const auto rows_of = [](const Chain& chain) { return chain.row_end - chain.row_begin; };
  std::int64_t most_chains = 1;
  if (shape.pairs && window == 0) {
    std::int64_t blocks = 0;
    for (const Chain& chain : chains_) {
      if (2 * rows_of(chain) <= most_rows) blocks += blocks_of(chain.begin, chain.end);
    }
    most_chains = std::max<std::int64_t>(1, blocks * shape.kv_heads / (2 * shape.workers));
  }
  bundles_.clear();
  for (std::int32_t index = 0; index < std::ssize(chains_); ++index) {
    const Chain& chain = chains_[at(index)];
    if (!bundles_.empty() && bundles_.back().chains < most_chains) {
      Bundle& bundle = bundles_.back();
      const Chain& first = chains_[at(bundle.first_chain)];
      const Chain& last = chains_[at(index - 1)];
      if (first.begin == chain.begin && last.row_end == chain.row_begin &&
          chain.row_end - first.row_begin <= most_rows &&
          blocks_of(chain.begin, chain.end) * (bundle.chains + 1) <= kBundleBlocks &&
          blocks_of(first.begin, first.end) == blocks_of(chain.begin, chain.end)) {
        ++bundle.chains;
        continue;
      }
    }
    bundles_.push_back({index, 1});
  }
}

/// By position, then by chain.
void TreePlan::list_blocks(const AttentionPlan& plan, const Bundle& bundle,
                           std::int64_t page_tokens) {
  const std::int32_t block_pages = narrow(kBlockTokens / page_tokens);
  const std::size_t first_block = blocks_.size();
  const std::int32_t begin = chains_[at(bundle.first_chain)].begin;
  for (std::int32_t i = 0; i < bundle.chains; ++i) {
    const Chain& chain = chains_[at(bundle.first_chain + i)];
    if (i == 0) {
      const std::int32_t positions = blocks_of(chain.begin, chain.end);
      blocks_.resize(first_block + at(positions * bundle.chains));
    }
    for (std::int32_t link = chain.first_link; link >= 0; link = links_[at(link)].next) {
      const AttentionItem& item = plan.items[at(links_[at(link)].item)];
      const std::int32_t end = std::min(narrow(item.end), chain.end);
      std::int32_t block = narrow(item.begin);
      std::size_t place = first_block + at((block - begin) / kBlock * bundle.chains + i);
      for (std::int32_t page = item.first_page; block < end; page += block_pages) {
        blocks_[place] = {page, block, std::min(block + kBlock, chain.end), chain.row_begin,
                          chain.row_end};
        block += kBlock;
        place += at(bundle.chains);
      }
    }
  }
}

void TreePlan::cut(const Bundle& bundle, std::int32_t first_block, std::int32_t tile_tokens) {
  Chain chain = chains_[at(bundle.first_chain)];
  for (std::int32_t i = 1; i < bundle.chains; ++i) {
    const Chain& other = chains_[at(bundle.first_chain + i)];
    chain.row_end = other.row_end;
    chain.end = std::max(chain.end, other.end);
    chain.seen_until = std::min(chain.seen_until, other.seen_until);
  }
  const std::int32_t rows = chain.row_end - chain.row_begin;
  const std::int32_t middle = chain.row_begin + (rows <= tile_rows_ ? rows : (rows + 1) / 2);
  for (std::int32_t begin = chain.begin; begin < chain.end;) {
    const std::int32_t end = std::min(chain.end, (begin / tile_tokens + 1) * tile_tokens);
    Work work;
    work.first = add_tile(chain, chain.row_begin, middle, begin, end);
    if (middle < chain.row_end) work.second = add_tile(chain, middle, chain.row_end, begin, end);
    for (TreeTile* tile : {&work.first, &work.second}) {
      tile->first_block = first_block + (begin - chain.begin) / kBlock * bundle.chains;
      tile->block_count = blocks_of(begin, end) * bundle.chains;
      tile->first_page = blocks_[at(tile->first_block)].first_page;
    }
    if (work.second.row_count == 0) work.second = {};
    works_.push_back(work);
    begin = end;
  }
}

TreeTile TreePlan::add_tile(const Chain& chain, std::int32_t row_begin, std::int32_t row_end,
                            std::int32_t begin, std::int32_t end) {
  TreeTile tile;
  tile.row_begin = row_begin;
  tile.row_count = row_end - row_begin;
  tile.begin = begin;
  tile.end = end;
  tile.low = chain.low;
  tile.first_slot = narrow(slots_);
  for (std::int32_t segment = begin; segment < end;) {
    const std::int32_t next = segment_end(segment, end);
    segments_.push_back(
        {row_begin, row_end, segment, next, narrow(slots_), segment < chain.seen_until});
    slots_ += tile.row_count;
    segment = next;
  }
  return tile;
}

/// By blocks, most first, and otherwise as they came.
void TreePlan::sort_works() {
  by_size_.assign(at(kMaxTileBlocks + 2), 0);
  const auto place = [](const Work& work) {
    return at(kMaxTileBlocks - std::min(kMaxTileBlocks, work.first.block_count));
  };
  for (const Work& work : works_) ++by_size_[place(work) + 1];
  for (std::size_t i = 1; i < by_size_.size(); ++i) by_size_[i] += by_size_[i - 1];
  sorted_.resize(works_.size());
  for (std::int32_t work = 0; work < std::ssize(works_); ++work) {
    sorted_[at(by_size_[place(works_[at(work)])]++)] = work;
  }
}

/// Tiles that share no tokens with another are paired where there are more of them than workers.
void TreePlan::list_tiles(const Shape& shape) {
  tiles_.clear();
  if (!shape.pairs) {
    for (const std::int32_t work : sorted_) tiles_.push_back(works_[at(work)].first);
    return;
  }
  const bool pair_up = std::ssize(works_) * shape.kv_heads > shape.workers;
  std::int64_t alone = -1;
  for (const std::int32_t index : sorted_) {
    const Work& work = works_[at(index)];
    if (work.second.row_count == 0 && pair_up && alone >= 0) {
      tiles_[at(alone)] = work.first;
      alone = -1;
      continue;
    }
    if (work.second.row_count == 0) alone = std::ssize(tiles_) + 1;
    tiles_.push_back(work.first);
    tiles_.push_back(work.second);
  }
}

void TreePlan::list_parts(const AttentionPlan& plan) {
  const auto sees = [&](std::int32_t row, const Segment& segment) {
    const std::int64_t position = plan.positions[at(row)];
    return position >= segment.begin && first_seen(position, plan.window) < segment.end;
  };
  row_parts_.assign(plan.positions.size() + 2, 0);
  for (const Segment& segment : segments_) {
    for (std::int32_t row = segment.row_begin; row < segment.row_end; ++row) {
      row_parts_[at(row) + 2] += segment.seen_by_all || sees(row, segment) ? 1 : 0;
    }
  }
  for (std::size_t i = 1; i < row_parts_.size(); ++i) row_parts_[i] += row_parts_[i - 1];
  parts_.resize(at(row_parts_.back()));
  for (const Segment& segment : segments_) {
    for (std::int32_t row = segment.row_begin; row < segment.row_end; ++row) {
      if (!segment.seen_by_all && !sees(row, segment)) continue;
      parts_[at(row_parts_[at(row) + 1]++)] = {segment.slot + row - segment.row_begin,
                                               segment.begin};
    }
  }
  row_parts_.pop_back();
}

}  // namespace dendrite::cuda
