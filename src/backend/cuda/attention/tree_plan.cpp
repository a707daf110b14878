#include "backend/cuda/attention/tree_plan.h"

#include <algorithm>
#include <limits>

#include "backend/cuda/attention/tree_plan_numbers.h"

namespace dendrite::cuda {
void TreePlan::build(const AttentionPlan& plan, const Shape& shape) {
  // Each has a place of its own, also when it is empty: recorded passes tell them apart by that.
  tiles_.reserve(1);
  blocks_.reserve(1);
  row_parts_.reserve(1);
  parts_.reserve(1);
  if (advance(plan, shape)) return;
  shape_ = shape;
  window_ = plan.window;
  positions_.assign(plan.positions.begin(), plan.positions.end());
  items_.assign(plan.items.begin(), plan.items.end());
  tile_rows_ = shape.tile_rows / shape.slice_heads;
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
  tiles_.resize(tiles_.size() + at((past / shape.slices + 1) * (shape.pairs ? 2 : 1)));
}

/// If each row is one position further, none at the end of a block and no window at its begin, and
/// items have changed by that alone: tiles, their cuts and their parts are the same but for where
/// they end.
bool TreePlan::advance(const AttentionPlan& plan, const Shape& shape) {
  const std::size_t rows = plan.positions.size();
  const std::size_t items = plan.items.size();
  if (rows == 0 || rows != positions_.size() || items != items_.size() || long_stretches_ ||
      plan.window != window_ || shape != shape_) {
    return false;
  }
  constexpr std::int64_t kMask = kBlockTokens - 1;
  bool same = true;
  for (std::size_t i = 0; i < rows; ++i) {
    const std::int64_t position = plan.positions[i];
    same = same && position == positions_[i] + 1 && (position & kMask) != kMask;
    // A window's begin moves on with its row; a chunk's stays. (The first seen position of a window
    // was 0 before it was 1, and may have been 0 before that.)
    if (window_.chunked) {
      same = same && position % window_.size != 0;
    } else if (window_.size > 0) {
      same = same && ((position - window_.size + 1) & kMask) > 1;
    }
  }
  for (std::size_t i = 0; i < items; ++i) {
    const AttentionItem& item = plan.items[i];
    const AttentionItem& before = items_[i];
    const std::int64_t grown = (before.end & kMask) != 0 ? 1 : 0;
    same = same && item.begin == before.begin && item.end == before.end + grown &&
           item.first_page == before.first_page && item.row_begin == before.row_begin &&
           item.row_end == before.row_end;
  }
  if (!same) return false;
  std::copy(plan.positions.begin(), plan.positions.end(), positions_.begin());
  std::copy(plan.items.begin(), plan.items.end(), items_.begin());
  for (const std::int32_t block : growing_) ++blocks_[at(block)].end;
  for (TreeTile& tile : tiles_) {
    if (tile.end % kBlock != 0) ++tile.end;
    if (tile.low > 0 && !window_.chunked) ++tile.low;
  }
  return true;
}

/// Rows of consecutive positions, as prefills have: tiles of all items are cut at the same rows
/// there, so that they can run on from item to item.
void TreePlan::find_stretches(const AttentionPlan& plan) {
  const std::int32_t rows = narrow(std::ssize(plan.positions));
  long_stretches_ = false;
  if (work_rows_ == 1) return;  // tiles of all items are the same anyway
  // A long one has a row at each multiple of its length less one, and the next row.
  bool none = true;
  for (std::int64_t row = 0; none && row + 1 < rows; row += work_rows_ - 1) {
    none = plan.positions[at(row + 1)] != plan.positions[at(row)] + 1;
  }
  if (none) return;
  stretch_begin_.resize(at(rows));
  stretch_end_.resize(at(rows));
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
      if (end < cell_end && plan.window.first_seen(plan.positions[at(end)]) >= item.end) {
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
  links_.emplace_back().item = index;
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
  Chain& chain = chains_.emplace_back();
  chain.row_begin = row_begin;
  chain.row_end = row_end;
  chain.begin = narrow(item.begin);
  chain.end = narrow(item.end);
  chain.first_link = chain.last_link = link;
}

void TreePlan::finish_chains(const AttentionPlan& plan, const Shape& shape) {
  std::int64_t work = 0;
  longest_ = 0;
  for (Chain& chain : chains_) {
    std::int64_t low = std::numeric_limits<std::int64_t>::max();
    std::int64_t least = low;
    std::int64_t high = 0;
    for (std::int32_t row = chain.row_begin; row < chain.row_end; ++row) {
      const std::int64_t position = plan.positions[at(row)];
      low = std::min(low, plan.window.first_seen(position));
      least = std::min(least, position + 1);
      high = std::max(high, position + 1);
    }
    chain.low = narrow(low);
    chain.seen_from = narrow(plan.window.first_seen(high - 1));
    chain.seen_until = narrow(least);
    chain.end = std::min(chain.end, narrow(high));
    chain.blocks = blocks_of(chain.begin, chain.end);
    longest_ = std::max<std::int64_t>(longest_, chain.blocks);
    work += chain.blocks;
  }
  const std::int64_t tile_blocks = bundle_and_size(work * shape.slices, shape, plan.window);
  const auto tile_tokens = static_cast<std::int32_t>(tile_blocks) * kBlock;
  blocks_.resize(at(work));
  growing_.clear();
  segments_.clear();
  works_.clear();
  slots_ = 0;
  std::int32_t first_block = 0;
  for (const Bundle& bundle : bundles_) {
    list_blocks(plan, bundle, first_block, shape.page_tokens);
    cut(bundle, first_block, tile_tokens);
    first_block += chains_[at(bundle.first_chain)].blocks * bundle.chains;
  }
}

/// Up to `most` neighbours that few rows see each.
void TreePlan::bundle_chains(std::int64_t most, const Shape& shape) {
  const std::int64_t most_rows = bundle_rows(shape);
  bundles_.clear();
  for (std::int32_t index = 0; index < std::ssize(chains_); ++index) {
    const Chain& chain = chains_[at(index)];
    if (!bundles_.empty() && bundles_.back().chains < most) {
      Bundle& bundle = bundles_.back();
      const Chain& first = chains_[at(bundle.first_chain)];
      const Chain& last = chains_[at(index - 1)];
      if (first.begin == chain.begin && last.row_end == chain.row_begin &&
          chain.row_end - first.row_begin <= most_rows && first.blocks == chain.blocks &&
          chain.blocks * (bundle.chains + 1) <= kBundleBlocks) {
        ++bundle.chains;
        continue;
      }
    }
    Bundle& bundle = bundles_.emplace_back();
    bundle.first_chain = index;
    bundle.chains = 1;
  }
}

/// By position, then by chain.
void TreePlan::list_blocks(const AttentionPlan& plan, const Bundle& bundle,
                           std::int32_t first_block, std::int64_t page_tokens) {
  const std::int32_t block_pages = narrow(kBlockTokens / page_tokens);
  for (std::int32_t i = 0; i < bundle.chains; ++i) {
    const Chain& chain = chains_[at(bundle.first_chain + i)];
    std::int32_t place = first_block + i;
    for (std::int32_t link = chain.first_link; link >= 0; link = links_[at(link)].next) {
      const AttentionItem& item = plan.items[at(links_[at(link)].item)];
      const std::int32_t end = std::min(narrow(item.end), chain.end);
      std::int32_t block = narrow(item.begin);
      for (std::int32_t page = item.first_page; block < end; page += block_pages) {
        blocks_[at(place)] = {page, block, std::min(block + kBlock, chain.end), chain.row_begin,
                              chain.row_end};
        block += kBlock;
        place += bundle.chains;
      }
    }
    if (chain.end % kBlock != 0) growing_.push_back(place - bundle.chains);
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
  const std::int32_t first_rows = rows <= tile_rows_ ? rows : (rows + 1) / 2;
  for (std::int32_t begin = chain.begin; begin < chain.end;) {
    const std::int32_t end = std::min(chain.end, (begin | (tile_tokens - 1)) + 1);
    Work& work = works_.emplace_back();
    work.tile.row_begin = chain.row_begin;
    work.tile.row_count = first_rows;
    work.tile.begin = begin;
    work.tile.end = end;
    work.tile.low = chain.low;
    work.tile.first_block = first_block + (begin - chain.begin) / kBlock * bundle.chains;
    work.tile.block_count = blocks_of(begin, end) * bundle.chains;
    work.tile.first_page = blocks_[at(work.tile.first_block)].first_page;
    work.tile.first_slot = narrow(slots_);
    add_segments(chain, chain.row_begin, first_rows, begin, end);
    if (rows > first_rows) {
      work.second_rows = rows - first_rows;
      work.second_slot = narrow(slots_);
      add_segments(chain, chain.row_begin + first_rows, work.second_rows, begin, end);
    }
    begin = end;
  }
}

/// Partial results of a tile of the chain.
void TreePlan::add_segments(const Chain& chain, std::int32_t row_begin, std::int32_t rows,
                            std::int32_t begin, std::int32_t end) {
  for (std::int32_t segment = begin; segment < end;) {
    const std::int32_t next = segment_end(segment, end);
    const bool all = segment < chain.seen_until && next > chain.seen_from;
    Segment& added = segments_.emplace_back();
    added.row_begin = row_begin;
    added.rows = rows;
    added.begin = segment;
    added.end = next;
    added.slot = narrow(slots_);
    added.seen_by_all = all;
    slots_ += rows;
    segment = next;
  }
}

/// By blocks, most first, and otherwise as they came.
void TreePlan::sort_works() {
  std::int32_t most = 0;
  for (const Work& work : works_) most = std::max(most, work.tile.block_count);
  most = std::min(kMaxTileBlocks, most);
  by_size_.assign(at(most + 2), 0);
  const auto place = [most](const Work& work) {
    return at(most - std::min(most, work.tile.block_count));
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
    for (const std::int32_t work : sorted_) tiles_.push_back(works_[at(work)].tile);
    return;
  }
  const bool pair_up = std::ssize(works_) * shape.slices > shape.workers;
  std::int64_t alone = -1;
  for (const std::int32_t index : sorted_) {
    const Work& work = works_[at(index)];
    if (work.second_rows == 0 && pair_up && alone >= 0) {
      tiles_[at(alone)] = work.tile;
      alone = -1;
      continue;
    }
    if (work.second_rows == 0) alone = std::ssize(tiles_) + 1;
    tiles_.push_back(work.tile);
    TreeTile& second = tiles_.emplace_back();
    if (work.second_rows > 0) {
      second = work.tile;
      second.row_begin += work.tile.row_count;
      second.row_count = work.second_rows;
      second.first_slot = work.second_slot;
    }
  }
}

void TreePlan::list_parts(const AttentionPlan& plan) {
  const auto sees = [&](std::int32_t row, const Segment& segment) {
    const std::int64_t position = plan.positions[at(row)];
    return position >= segment.begin && plan.window.first_seen(position) < segment.end;
  };
  row_parts_.assign(plan.positions.size() + 2, 0);
  for (const Segment& segment : segments_) {
    std::int32_t* counts = &row_parts_[at(segment.row_begin) + 2];
    for (std::int32_t i = 0; i < segment.rows; ++i) {
      counts[i] += segment.seen_by_all || sees(segment.row_begin + i, segment) ? 1 : 0;
    }
  }
  for (std::size_t i = 1; i < row_parts_.size(); ++i) row_parts_[i] += row_parts_[i - 1];
  parts_.resize(at(row_parts_.back()));
  for (const Segment& segment : segments_) {
    std::int32_t* places = &row_parts_[at(segment.row_begin) + 1];
    for (std::int32_t i = 0; i < segment.rows; ++i) {
      if (!segment.seen_by_all && !sees(segment.row_begin + i, segment)) continue;
      parts_[at(places[i]++)] = {segment.slot + i, segment.begin};
    }
  }
  row_parts_.pop_back();
}

}  // namespace dendrite::cuda
