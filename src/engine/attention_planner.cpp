#include "engine/attention_planner.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <numeric>

namespace dendrite {

namespace {

bool equal_pages(const std::int32_t* a, const std::int32_t* b, std::int64_t count) {
  return std::memcmp(a, b, static_cast<std::size_t>(count) * sizeof(*a)) == 0;
}

/// First index in [begin, end) where the tables differ, or `end`.
std::int64_t first_difference(const std::int32_t* a, const std::int32_t* b, std::int64_t begin,
                              std::int64_t end) {
  constexpr std::int64_t kStride = 64;
  while (begin + kStride <= end && equal_pages(a + begin, b + begin, kStride)) begin += kStride;
  while (begin < end && a[begin] == b[begin]) ++begin;
  return begin;
}

}  // namespace

AttentionPlanner::AttentionPlanner(std::int64_t page_tokens)
    : page_tokens_(page_tokens), block_pages_(kBlockTokens / page_tokens) {
  assert(kBlockTokens % page_tokens == 0);
}

void AttentionPlanner::order(std::span<const PlanSequence> sequences,
                             std::vector<std::int32_t>& order) {
  order.resize(sequences.size());
  std::iota(order.begin(), order.end(), 0);
  common_.assign(sequences.size(), 0);
  if (sequences.empty()) return;
  // What all have in common is most of what they have, and read once.
  const auto first = sequences.front().table;
  std::int64_t root = std::ssize(first);
  for (const PlanSequence& sequence : sequences) {
    root = std::min(root, std::ssize(sequence.table));
    root = first_difference(first.data(), sequence.table.data(), 0, root);
  }
  const auto common = [&](const PlanSequence& a, const PlanSequence& b) {
    const std::int64_t shorter = std::min(std::ssize(a.table), std::ssize(b.table));
    return first_difference(a.table.data(), b.table.data(), root, shorter);
  };
  const auto at = [&](std::int32_t index) -> const PlanSequence& {
    return sequences[static_cast<std::size_t>(index)];
  };
  // Lexicographic by table: common prefixes end up together, and a prefix before what extends it.
  std::sort(order.begin(), order.end(), [&](std::int32_t left, std::int32_t right) {
    const PlanSequence& a = at(left);
    const PlanSequence& b = at(right);
    const std::int64_t i = common(a, b);
    if (i < std::min(std::ssize(a.table), std::ssize(b.table))) {
      return a.table[static_cast<std::size_t>(i)] < b.table[static_cast<std::size_t>(i)];
    }
    if (a.table.size() != b.table.size()) return a.table.size() < b.table.size();
    if (a.first_position != b.first_position) return a.first_position < b.first_position;
    return left < right;
  });
  for (std::size_t i = 1; i < order.size(); ++i)
    common_[i] = common(at(order[i - 1]), at(order[i]));
}

std::int64_t AttentionPlanner::pages_in_block(const Sequence& s, std::int64_t block) const {
  return std::clamp<std::int64_t>(s.pages - block * block_pages_, 0, block_pages_);
}

/// Rows of both see the block through the pages of `s`. The longer comes second, so that joining is
/// transitive along a run of neighbours, and the last one's table serves all.
bool AttentionPlanner::joins(const Sequence& previous, const Sequence& s,
                             std::int64_t block) const {
  const std::int64_t pages = pages_in_block(previous, block);
  const std::int64_t first = block * block_pages_;
  return pages > 0 && pages <= pages_in_block(s, block) &&
         equal_pages(previous.table + first, s.table + first, pages);
}

void AttentionPlanner::update_joins(const Sequence& previous, Sequence& s,
                                    std::int64_t block) const {
  const std::int64_t common = std::min(previous.pages, s.pages);
  s.joins_previous = joins(previous, s, block);
  if (s.joins_previous) {
    // A difference, or one table's end, is in the first block that may not join.
    const std::int64_t known = std::min(s.common, common);
    const std::int64_t difference =
        first_difference(previous.table, s.table, std::max(known, block * block_pages_), common);
    s.joins_until = std::max(block + 1, difference / block_pages_);
    return;
  }
  // Branches that parted seldom have common pages again; mostly one comparison a block fails.
  for (std::int64_t next = block + 1; next * block_pages_ < common; ++next) {
    const std::int64_t first = next * block_pages_;
    if (previous.table[first] == s.table[first] && joins(previous, s, next)) {
      s.joins_until = next;
      return;
    }
  }
  s.joins_until = kNever;
}

void AttentionPlanner::update_rows(Sequence& s, std::int64_t block, std::int64_t window) const {
  const std::int64_t begin = block * kBlockTokens;
  const std::int64_t end = begin + kBlockTokens;
  // A row at position p sees positions (p - window, p].
  s.row_begin = std::clamp<std::int64_t>(begin - s.first_position, 0, s.rows);
  s.rows_until = begin <= s.first_position ? s.first_position / kBlockTokens + 1
                 : s.row_begin < s.rows    ? block + 1
                                           : kNever;
  s.row_end = s.rows;
  if (window > 0) {
    const std::int64_t in_window = end + window - 1 - s.first_position;
    s.row_end = std::clamp<std::int64_t>(in_window, 0, s.rows);
    if (in_window <= 0) {
      s.rows_until = std::min(s.rows_until, (s.first_position - window + 1) / kBlockTokens);
    } else if (in_window < s.rows) {
      s.rows_until = block + 1;
    }
  }
}

/// Rows that see the current block through the same pages.
void AttentionPlanner::find_groups() {
  groups_.clear();
  for (std::size_t i = 0; i < sequences_.size(); ++i) {
    const Sequence* s = &sequences_[i];
    if (s->row_begin >= s->row_end) continue;
    Draft draft;
    draft.row_begin = static_cast<std::int32_t>(s->batch_row + s->row_begin);
    draft.position_end = s->first_position + s->row_end;
    while (s->row_end == s->rows && i + 1 < sequences_.size()) {
      const Sequence& next = sequences_[i + 1];
      if (!next.joins_previous || next.row_begin > 0 || next.row_end == 0) break;
      s = &next;
      ++i;
      draft.position_end = std::max(draft.position_end, s->first_position + s->row_end);
    }
    draft.row_end = static_cast<std::int32_t>(s->batch_row + s->row_end);
    draft.source = i;
    groups_.push_back(draft);
  }
}

/// Adds items of blocks [block_begin, block_end), over which the groups stay as they are.
void AttentionPlanner::add_groups(std::int64_t block_begin, std::int64_t block_end) {
  next_active_.clear();
  auto open = active_.begin();
  for (Draft draft : groups_) {
    draft.block_begin = block_begin;
    draft.block_end = block_end;
    while (open != active_.end() && drafts_[*open].row_begin < draft.row_begin) ++open;
    if (open != active_.end() && drafts_[*open].row_begin == draft.row_begin &&
        drafts_[*open].row_end == draft.row_end) {
      drafts_[*open].block_end = block_end;  // the same rows, so the same sequences and source
      next_active_.push_back(*open);
    } else {
      next_active_.push_back(drafts_.size());
      drafts_.push_back(draft);
    }
  }
  std::swap(active_, next_active_);
}

void AttentionPlanner::finish_super_block(AttentionPlan& plan) {
  if (!drafts_.empty()) {
    AttentionPlan::SuperBlock super_block;
    super_block.item_begin = static_cast<std::int32_t>(plan.items.size());
    for (const Draft& draft : drafts_) {
      AttentionItem item;
      item.begin = draft.block_begin * kBlockTokens;
      item.end = std::min(draft.block_end * kBlockTokens, draft.position_end);
      item.first_page = static_cast<std::int32_t>(plan.pages.size());
      item.row_begin = draft.row_begin;
      item.row_end = draft.row_end;
      const std::int32_t* table = sequences_[draft.source].table;
      plan.pages.insert(plan.pages.end(), table + item.begin / page_tokens_,
                        table + (item.end + page_tokens_ - 1) / page_tokens_);
      plan.items.push_back(item);
    }
    super_block.item_end = static_cast<std::int32_t>(plan.items.size());
    plan.super_blocks.push_back(super_block);
  }
  drafts_.clear();
  active_.clear();
}

void AttentionPlanner::build(std::span<const PlanSequence> sequences, std::int64_t window,
                             AttentionPlan& plan) {
  plan.window = window;
  plan.positions.clear();
  plan.items.clear();
  plan.super_blocks.clear();
  plan.pages.clear();

  sequences_.clear();
  std::int64_t blocks = 0;
  for (const PlanSequence& sequence : sequences) {
    assert(sequence.rows > 0);
    const std::int64_t end = sequence.first_position + sequence.rows;
    Sequence s;
    s.table = sequence.table.data();
    s.first_position = sequence.first_position;
    s.rows = sequence.rows;
    s.pages = (end - 1) / page_tokens_ + 1;
    s.common = sequence.common;
    assert(s.pages <= std::ssize(sequence.table));
    s.batch_row = std::ssize(plan.positions);
    s.joins_until = sequences_.empty() || !share_reads_ ? kNever : 0;
    sequences_.push_back(s);
    blocks = std::max(blocks, (end - 1) / kBlockTokens + 1);
    for (std::int64_t p = sequence.first_position; p < end; ++p) plan.positions.push_back(p);
  }

  std::int64_t change = 0;  // the block from which the groups may be others
  for (std::int64_t block = 0; block < blocks;) {
    const std::int64_t super_end = super_block_end(block * kBlockTokens) / kBlockTokens;
    if (block == change) {
      change = blocks;
      for (std::size_t i = 0; i < sequences_.size(); ++i) {
        Sequence& s = sequences_[i];
        if (s.rows_until <= block) update_rows(s, block, window);
        if (s.joins_until <= block) update_joins(sequences_[i - 1], s, block);
        change = std::min({change, s.rows_until, s.joins_until});
      }
      find_groups();
    }
    const std::int64_t run_end = std::min(super_end, change);
    add_groups(block, run_end);
    if (run_end == super_end || run_end == blocks) finish_super_block(plan);
    block = run_end;
  }
}

}  // namespace dendrite
