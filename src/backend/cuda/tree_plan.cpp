#include "backend/cuda/tree_plan.h"

#include <algorithm>
#include <bit>
#include <limits>

namespace dendrite::cuda {
namespace {

constexpr auto kBlock = static_cast<std::int32_t>(kBlockTokens);
constexpr std::int32_t kMaxTileBlocks = 256;

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
  chains_.clear();
  links_.clear();
  open_.assign(plan.positions.size(), -1);
  find_stretches(plan);
  for (std::int32_t item = 0; item < std::ssize(plan.items); ++item) add_item(plan, item);
  finish_chains(plan, shape);
  sort_tiles();
  list_parts(plan);
  counts_.assign(1, {narrow(std::ssize(tiles_)), narrow(std::ssize(plan.positions))});
  tiles_.resize(tiles_.size() + at(shape.workers / shape.kv_heads + 1));
}

/// Rows of consecutive positions, as prefills have: tiles of all items are cut at the same rows
/// there, so that they can run on from item to item.
void TreePlan::find_stretches(const AttentionPlan& plan) {
  const std::int32_t rows = narrow(std::ssize(plan.positions));
  stretch_begin_.resize(at(rows));
  stretch_end_.resize(at(rows));
  for (std::int32_t begin = 0; begin < rows;) {
    std::int32_t end = begin + 1;
    while (end < rows && plan.positions[at(end)] == plan.positions[at(end - 1)] + 1) ++end;
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
    return stretch_end_[at(row)] - stretch_begin_[at(row)] >= tile_rows_;
  };
  for (std::int32_t row = item.row_begin; row < item.row_end;) {
    std::int32_t begin = row;
    std::int32_t end = row + 1;
    if (long_stretch(row)) {
      const std::int32_t first = stretch_begin_[at(row)];
      const std::int32_t cell = narrow(first + (row - first) / tile_rows_ * tile_rows_);
      const std::int32_t cell_end = std::min(narrow(cell + tile_rows_), stretch_end_[at(row)]);
      end = std::min(cell_end, item.row_end);
      row = end;
      // Positions ascend over the cell: if the row next to ours sees nothing here, none beyond
      // does.
      if (begin > cell && plan.positions[at(begin - 1)] < item.begin) begin = cell;
      if (end < cell_end && first_seen(plan.positions[at(end)], plan.window) >= item.end) {
        end = cell_end;
      }
    } else {
      const std::int32_t limit = std::min(narrow(row + tile_rows_), item.row_end);
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
  chains_.push_back({row_begin, row_end, narrow(item.begin), narrow(item.end), 0, link, link});
}

void TreePlan::finish_chains(const AttentionPlan& plan, const Shape& shape) {
  std::int64_t work = 0;
  for (Chain& chain : chains_) {
    std::int64_t low = std::numeric_limits<std::int64_t>::max();
    std::int64_t high = 0;
    for (std::int32_t row = chain.row_begin; row < chain.row_end; ++row) {
      low = std::min(low, first_seen(plan.positions[at(row)], plan.window));
      high = std::max(high, plan.positions[at(row)] + 1);
    }
    chain.low = narrow(low);
    chain.end = std::min(chain.end, narrow(high));
    work += blocks_of(chain.begin, chain.end);
  }
  // The largest power of two that leaves no worker idle; but whole runs, which leave few partial
  // results, as long as an eighth of the workers has something to do.
  const std::int64_t units = work * shape.kv_heads;
  std::int64_t tile_blocks = units / shape.workers;
  if (units >= shape.workers / 2) tile_blocks = std::max(tile_blocks, kRunTokens / kBlockTokens);
  tile_blocks = std::clamp<std::int64_t>(tile_blocks, 1, kMaxTileBlocks);
  const auto tile_tokens =
      static_cast<std::int32_t>(std::bit_floor(static_cast<std::uint32_t>(tile_blocks))) * kBlock;
  blocks_.clear();
  segments_.clear();
  unsorted_.clear();
  slots_ = 0;
  for (const Chain& chain : chains_) {
    const std::int32_t first_block = narrow(std::ssize(blocks_));
    for (std::int32_t link = chain.first_link; link >= 0; link = links_[at(link)].next) {
      const AttentionItem& item = plan.items[at(links_[at(link)].item)];
      for (std::int64_t begin = item.begin; begin < item.end; begin += kBlock) {
        blocks_.push_back(item.first_page + narrow((begin - item.begin) / shape.page_tokens));
      }
    }
    cut(chain, first_block, tile_tokens);
  }
}

void TreePlan::cut(const Chain& chain, std::int32_t first_block, std::int32_t tile_tokens) {
  const std::int32_t rows = chain.row_end - chain.row_begin;
  for (std::int32_t begin = chain.begin; begin < chain.end;) {
    TreeTile tile;
    tile.row_begin = chain.row_begin;
    tile.row_count = rows;
    tile.begin = begin;
    tile.end = std::min(chain.end, (begin / tile_tokens + 1) * tile_tokens);
    tile.low = chain.low;
    tile.first_block = first_block + (begin - chain.begin) / kBlock;
    tile.first_page = blocks_[at(tile.first_block)];
    tile.first_slot = narrow(slots_);
    unsorted_.push_back(tile);
    for (std::int32_t segment = begin; segment < tile.end;) {
      const std::int32_t end = segment_end(segment, tile.end);
      segments_.push_back({chain.row_begin, chain.row_end, segment, end, narrow(slots_)});
      slots_ += rows;
      segment = end;
    }
    begin = tile.end;
  }
}

/// By blocks, most first, and otherwise as they came.
void TreePlan::sort_tiles() {
  by_size_.assign(at(kMaxTileBlocks + 2), 0);
  const auto place = [](const TreeTile& tile) {
    return at(kMaxTileBlocks - blocks_of(tile.begin, tile.end));
  };
  for (const TreeTile& tile : unsorted_) ++by_size_[place(tile) + 1];
  for (std::size_t i = 1; i < by_size_.size(); ++i) by_size_[i] += by_size_[i - 1];
  tiles_.resize(unsorted_.size());
  for (const TreeTile& tile : unsorted_) tiles_[at(by_size_[place(tile)]++)] = tile;
}

void TreePlan::list_parts(const AttentionPlan& plan) {
  const auto sees = [&](std::int32_t row, const Segment& segment) {
    const std::int64_t position = plan.positions[at(row)];
    return position >= segment.begin && first_seen(position, plan.window) < segment.end;
  };
  row_parts_.assign(plan.positions.size() + 2, 0);
  for (const Segment& segment : segments_) {
    for (std::int32_t row = segment.row_begin; row < segment.row_end; ++row) {
      if (sees(row, segment)) ++row_parts_[at(row) + 2];
    }
  }
  for (std::size_t i = 1; i < row_parts_.size(); ++i) row_parts_[i] += row_parts_[i - 1];
  parts_.resize(at(row_parts_.back()));
  for (const Segment& segment : segments_) {
    for (std::int32_t row = segment.row_begin; row < segment.row_end; ++row) {
      if (!sees(row, segment)) continue;
      parts_[at(row_parts_[at(row) + 1]++)] = {segment.slot + row - segment.row_begin,
                                               segment.begin};
    }
  }
  row_parts_.pop_back();
}

/// Every row in a tile of its own and every block a tile, but for rows that a cell takes in.
TreePlan::Bounds TreePlan::bounds(std::int64_t rows, std::int64_t tokens, std::int64_t group) {
  const std::int64_t blocks = (tokens + kBlockTokens - 1) / kBlockTokens;
  const std::int64_t cell = std::max<std::int64_t>(1, kTileRows / group);
  return {rows * blocks, rows * blocks, rows * blocks, std::min(rows, cell) * rows * blocks};
}

}  // namespace dendrite::cuda
