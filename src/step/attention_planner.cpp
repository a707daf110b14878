#include "step/attention_planner.h"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cstring>

namespace dendrite {

namespace {

constexpr auto kBlock = static_cast<std::int32_t>(kBlockTokens);

/// First index in [begin, end) where the tables differ, or `end`.
std::int64_t first_difference(const std::int32_t* a, const std::int32_t* b, std::int64_t begin,
                              std::int64_t end) {
  for (const std::int64_t stride : {512, 64, 8}) {
    const auto bytes = static_cast<std::size_t>(stride) * sizeof(*a);
    while (begin + stride <= end && std::memcmp(a + begin, b + begin, bytes) == 0) begin += stride;
  }
  while (begin < end && a[begin] == b[begin]) ++begin;
  return begin;
}

/// Pages that both have first, if they have `known` of them.
std::int64_t common_pages(const PlanSequence& a, const PlanSequence& b, std::int64_t known) {
  const std::int64_t shorter = std::min(std::ssize(a.table), std::ssize(b.table));
  return first_difference(a.table.data(), b.table.data(), known, shorter);
}

/// Lexicographic by table: common prefixes end up together, and a prefix before what extends it.
/// `common`: of their pages; `first`: a came before b.
bool precedes(const PlanSequence& a, const PlanSequence& b, std::int64_t common, bool first) {
  if (common < std::min(std::ssize(a.table), std::ssize(b.table))) {
    return a.table[static_cast<std::size_t>(common)] < b.table[static_cast<std::size_t>(common)];
  }
  if (a.table.size() != b.table.size()) return a.table.size() < b.table.size();
  if (a.first_position != b.first_position) return a.first_position < b.first_position;
  return first;
}

}  // namespace

AttentionPlanner::AttentionPlanner(std::int64_t page_tokens)
    : page_shift_(std::countr_zero(static_cast<std::uint64_t>(page_tokens))),
      block_page_shift_(std::countr_zero(static_cast<std::uint64_t>(kBlockTokens / page_tokens))) {
  assert(kBlockTokens % page_tokens == 0);
}

void AttentionPlanner::order(std::span<const PlanSequence> sequences,
                             std::vector<std::int32_t>& order) {
  if (!order_holds(sequences)) sort(sequences);
  order = order_;
  known_.resize(sequences.size());
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    known_[i] = {sequences[i].stamp, sequences[i].settled};
  }
}

/// Whether the last order is the right one: it is if neighbours are. Where their tables parted at a
/// page that was settled in both, they still do.
bool AttentionPlanner::order_holds(std::span<const PlanSequence> sequences) {
  if (sequences.size() != known_.size()) return false;
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    if (sequences[i].stamp == 0 || sequences[i].stamp != known_[i].stamp ||
        std::ssize(sequences[i].table) < known_[i].settled) {
      return false;
    }
  }
  for (std::size_t place = 1; place < order_.size(); ++place) {
    const auto left = static_cast<std::size_t>(order_[place - 1]);
    const auto right = static_cast<std::size_t>(order_[place]);
    const std::int64_t settled = std::min(known_[left].settled, known_[right].settled);
    if (common_[place] < settled) continue;
    common_[place] = common_pages(sequences[left], sequences[right], settled);
    if (!precedes(sequences[left], sequences[right], common_[place], left < right)) return false;
  }
  return true;
}

void AttentionPlanner::sort(std::span<const PlanSequence> sequences) {
  order_.resize(sequences.size());
  common_.assign(sequences.size(), 0);
  if (sequences.empty()) return;
  // What all have in common is most of what they have, and read once.
  const auto first = sequences.front().table;
  std::int64_t root = std::ssize(first);
  for (const PlanSequence& sequence : sequences) {
    root = std::min(root, std::ssize(sequence.table));
    root = first_difference(first.data(), sequence.table.data(), 0, root);
  }
  const auto at = [&](std::uint64_t entry) -> const PlanSequence& {
    return sequences[static_cast<std::uint32_t>(entry)];
  };
  // The page after the root comes first in what is compared; for most, that is all.
  sorted_.clear();
  for (const PlanSequence& sequence : sequences) {
    const bool ends = std::ssize(sequence.table) == root;
    const std::int64_t page = ends ? -1 : sequence.table[static_cast<std::size_t>(root)];
    sorted_.push_back(static_cast<std::uint64_t>(page + 1) << 32 | sorted_.size());
  }
  std::sort(sorted_.begin(), sorted_.end(), [&](std::uint64_t left, std::uint64_t right) {
    if (left >> 32 != right >> 32) return left < right;
    const PlanSequence& a = at(left);
    const PlanSequence& b = at(right);
    return precedes(a, b, common_pages(a, b, root), left < right);
  });
  for (std::size_t i = 0; i < order_.size(); ++i) {
    order_[i] = static_cast<std::int32_t>(sorted_[i]);
    if (i == 0) continue;
    const bool same = sorted_[i - 1] >> 32 == sorted_[i] >> 32;
    common_[i] = same ? common_pages(at(sorted_[i - 1]), at(sorted_[i]), root) : root;
  }
}

/// Rows of both see the block through the pages of `s`. The longer comes second, so that joining is
/// transitive along a run of neighbours, and the last one's table serves all.
bool AttentionPlanner::joins(const Sequence& previous, const Sequence& s,
                             std::int32_t block) const {
  const std::int32_t first = block << block_page_shift_;
  const std::int32_t block_end = first + (1 << block_page_shift_);
  const std::int32_t end = std::min(previous.pages, block_end);
  if (end <= first || end > s.pages) return false;
  std::int32_t page = std::max(first, s.common);
  while (page < end && previous.table[page] == s.table[page]) ++page;
  return page >= end;
}

void AttentionPlanner::update_joins(const Sequence& previous, Sequence& s,
                                    std::int32_t block) const {
  const std::int32_t common = std::min(previous.pages, s.pages);
  const std::int32_t first = block << block_page_shift_;
  s.joins_previous = joins(previous, s, block);
  if (s.joins_previous) {
    // A difference, or one table's end, is in the first block that may not join.
    const auto difference = static_cast<std::int32_t>(first_difference(
        previous.table, s.table, std::max(std::min(s.common, common), first), common));
    s.joins_until = std::max(block + 1, difference >> block_page_shift_);
    return;
  }
  // Branches that parted seldom have common pages again; mostly one comparison a block fails.
  const std::int32_t block_pages = 1 << block_page_shift_;
  for (std::int32_t page = first + block_pages; page < common; page += block_pages) {
    const std::int32_t next = page >> block_page_shift_;
    if (previous.table[page] == s.table[page] && joins(previous, s, next)) {
      s.joins_until = next;
      return;
    }
  }
  s.joins_until = kNever;
}

void AttentionPlanner::update_rows(Sequence& s, std::int32_t block, AttentionWindow window) const {
  const std::int64_t begin = std::int64_t{block} * kBlockTokens;
  const std::int64_t end = begin + kBlockTokens;
  const auto to_rows = [&](std::int64_t rows) {
    return static_cast<std::int32_t>(std::clamp<std::int64_t>(rows, 0, s.rows));
  };
  const auto to_block = [](std::int64_t position) {
    return static_cast<std::int32_t>(position / kBlockTokens);
  };
  // A row at position p sees positions [window.first_seen(p), p].
  s.row_begin = to_rows(begin - s.first_position);
  s.rows_until = begin <= s.first_position ? to_block(s.first_position) + 1
                 : s.row_begin < s.rows    ? block + 1
                                           : kNever;
  s.row_end = s.rows;
  if (window.size > 0) {
    const std::int64_t in_window = window.unseen_from(end) - s.first_position;
    s.row_end = to_rows(in_window);
    if (in_window <= 0) {
      s.rows_until = std::min(s.rows_until, to_block(window.first_seen(s.first_position)));
    } else if (in_window < s.rows) {
      s.rows_until = block + 1;
    }
  }
}

/// Brings groups up to date that may be others from this block on.
void AttentionPlanner::regroup(std::int32_t block, AttentionWindow window) {
  next_groups_.clear();
  for (const Group& group : groups_) {
    if (group.until > block) {
      if (Group* before = joined(group.first, group.joins); before != nullptr) {
        close(group, block);
        extend(*before, group.last, group.row_end, group.position_end, group.until, block);
        before->open = group.open;
      } else {
        next_groups_.push_back(group);
      }
      continue;
    }
    for (std::int32_t i = group.first; i <= group.last; ++i) {
      Sequence& s = sequences_[static_cast<std::size_t>(i)];
      if (s.rows_until <= block) update_rows(s, block, window);
      if (s.joins_until <= block) update_joins(*(&s - 1), s, block);
      const bool sees = s.row_begin < s.row_end;
      if (!sees && s.rows_until == kNever) continue;  // nor ever will
      const std::int32_t row_end = s.batch_row + s.row_end;
      const std::int32_t until = std::min(s.rows_until, s.joins_until);
      const bool joins = s.joins_previous && s.row_begin == 0 && sees;
      Group* target = sees ? joined(i, joins) : unseen_before(i);
      if (target != nullptr) {
        extend(*target, i, sees ? row_end : target->row_end, s.first_position + s.row_end, until,
               block);
      } else {
        target = &next_groups_.emplace_back();
        target->position_end = s.first_position + s.row_end;
        target->first = target->last = i;
        target->row_begin = s.batch_row + s.row_begin;
        target->row_end = row_end;
        target->until = until;
        target->joins = joins;
      }
      target->open = sees && s.row_end == s.rows;
    }
    Group* last = next_groups_.empty() ? nullptr : &next_groups_.back();
    if (last != nullptr && last->row_begin == group.row_begin && last->row_end == group.row_end) {
      last->draft = group.draft;  // the same rows, so the same sequences and source
    } else {
      close(group, block);
    }
  }
  std::swap(groups_, next_groups_);
}

/// The group that rows from this sequence on belong to, or null: a new one. `joins`: of theirs.
AttentionPlanner::Group* AttentionPlanner::joined(std::int32_t sequence, bool joins) {
  if (!joins || next_groups_.empty()) return nullptr;
  Group& before = next_groups_.back();
  return before.open && before.last + 1 == sequence ? &before : nullptr;
}

/// The group that ends before this sequence, if it sees nothing yet either.
AttentionPlanner::Group* AttentionPlanner::unseen_before(std::int32_t sequence) {
  if (next_groups_.empty()) return nullptr;
  Group& before = next_groups_.back();
  return !before.sees() && before.last + 1 == sequence ? &before : nullptr;
}

void AttentionPlanner::extend(Group& group, std::int32_t last, std::int32_t row_end,
                              std::int64_t position_end, std::int32_t until, std::int32_t block) {
  close(group, block);
  group.draft = kNone;
  group.position_end = std::max(group.position_end, position_end);
  group.last = last;
  group.row_end = row_end;
  group.until = std::min(group.until, until);
}

/// Its draft, if it has one, ends before this block.
void AttentionPlanner::close(const Group& group, std::int32_t block) {
  if (group.draft != kNone) drafts_[static_cast<std::size_t>(group.draft)].block_end = block;
}

/// Groups without a draft get one from this block on. Returns the block from which groups may be
/// others.
std::int32_t AttentionPlanner::open_drafts(std::int32_t block) {
  std::int32_t change = kNever;
  for (Group& group : groups_) {
    change = std::min(change, group.until);
    if (group.draft != kNone || !group.sees()) continue;
    group.draft = static_cast<std::int32_t>(drafts_.size());
    Draft& draft = drafts_.emplace_back();
    draft.position_end = group.position_end;
    draft.block_begin = block;
    draft.row_begin = group.row_begin;
    draft.row_end = group.row_end;
    draft.source = group.last;
  }
  return change;
}

void AttentionPlanner::add_item(const Draft& draft, AttentionPlan& plan) {
  AttentionItem& item = plan.items.emplace_back();
  item.begin = std::int64_t{draft.block_begin} * kBlockTokens;
  item.end = std::min(std::int64_t{draft.block_end} * kBlockTokens, draft.position_end);
  item.first_page = static_cast<std::int32_t>(pages_);
  item.row_begin = draft.row_begin;
  item.row_end = draft.row_end;
  const std::int64_t first = item.begin >> page_shift_;
  const auto count = static_cast<std::size_t>(((item.end - 1) >> page_shift_) + 1 - first);
  // The last plan's pages are overwritten, so that few are set to zero first.
  if (pages_ + count > plan.pages.size()) plan.pages.resize(pages_ + count + pages_ / 4);
  const std::int32_t* table = sequences_[static_cast<std::size_t>(draft.source)].table;
  std::copy_n(table + first, count, plan.pages.data() + pages_);
  pages_ += count;
}

/// Items of the super-block, which ends before this block.
void AttentionPlanner::finish_super_block(std::int32_t block, AttentionPlan& plan) {
  for (Group& group : groups_) {
    close(group, block);
    group.draft = kNone;
  }
  if (drafts_.empty()) return;
  const auto item_begin = static_cast<std::int32_t>(plan.items.size());
  for (const Draft& draft : drafts_) add_item(draft, plan);
  plan.super_blocks.push_back({item_begin, static_cast<std::int32_t>(plan.items.size())});
  drafts_.clear();
}

/// Returns how many blocks there are.
std::int32_t AttentionPlanner::add_sequences(std::span<const PlanSequence> sequences,
                                             AttentionPlan& plan) {
  std::size_t rows = 0;
  for (const PlanSequence& sequence : sequences) rows += static_cast<std::size_t>(sequence.rows);
  plan.positions.resize(rows);
  sequences_.resize(sequences.size());
  groups_.clear();
  if (!sequences.empty()) {
    Group all;  // to be split
    all.last = static_cast<std::int32_t>(sequences.size()) - 1;
    groups_.push_back(all);
  }
  std::int64_t last = -1;
  std::int64_t* position = plan.positions.data();
  Sequence* s = sequences_.data();
  for (const PlanSequence& sequence : sequences) {
    assert(sequence.rows > 0);
    const std::int64_t end = sequence.first_position + sequence.rows;
    s->table = sequence.table.data();
    s->first_position = sequence.first_position;
    s->rows = sequence.rows;
    s->pages = static_cast<std::int32_t>((end - 1) >> page_shift_) + 1;
    s->common = static_cast<std::int32_t>(sequence.common);
    assert(s->pages <= std::ssize(sequence.table));
    s->batch_row = static_cast<std::int32_t>(position - plan.positions.data());
    s->rows_until = 0;
    s->joins_until = s == sequences_.data() || !share_reads_ ? kNever : 0;
    s->joins_previous = false;
    last = std::max(last, end - 1);
    for (std::int64_t p = sequence.first_position; p < end; ++p) *position++ = p;
    ++s;
  }
  return static_cast<std::int32_t>((last + kBlockTokens) / kBlockTokens);
}

/// If each sequence is a row one position further than it was in `plan`, in the same last page and
/// with its window's begin in the same block: nothing but positions and ends changes.
bool AttentionPlanner::advance(std::span<const PlanSequence> sequences, AttentionWindow window,
                               AttentionPlan& plan) const {
  const std::size_t rows = sequences.size();
  if (rows == 0 || plan.sources.size() != rows || plan.window != window) return false;
  for (std::size_t i = 0; i < rows; ++i) {
    const PlanSequence& s = sequences[i];
    const AttentionPlan::Source& source = plan.sources[i];
    const std::int64_t page = s.first_position >> page_shift_;
    if (s.stamp != source.stamp || s.rows != 1 || s.first_position != plan.positions[i] + 1 ||
        source.settled < page || s.table[static_cast<std::size_t>(page)] != source.last_page) {
      return false;
    }
    if (window.first_seen(s.first_position) / kBlockTokens !=
        window.first_seen(s.first_position - 1) / kBlockTokens) {
      return false;
    }
  }
  for (std::int64_t& position : plan.positions) ++position;
  for (AttentionItem& item : plan.items) item.end += (item.end & (kBlockTokens - 1)) != 0 ? 1 : 0;
  return true;
}

void AttentionPlanner::set_sources(std::span<const PlanSequence> sequences,
                                   AttentionPlan& plan) const {
  plan.sources.resize(sequences.size());
  for (std::size_t i = 0; i < sequences.size(); ++i) {
    const PlanSequence& s = sequences[i];
    if (s.stamp == 0 || s.rows != 1) return plan.sources.clear();
    plan.sources[i] = {s.stamp, static_cast<std::int32_t>(s.settled),
                       s.table[static_cast<std::size_t>(s.first_position >> page_shift_)]};
  }
}

void AttentionPlanner::build(std::span<const PlanSequence> sequences, AttentionWindow window,
                             AttentionPlan& plan) {
  if (advance(sequences, window, plan)) return;
  set_sources(sequences, plan);
  plan.window = window;
  plan.items.clear();
  plan.super_blocks.clear();
  pages_ = 0;
  const std::int32_t blocks = add_sequences(sequences, plan);
  std::int32_t change = 0;  // the block from which the groups may be others
  for (std::int32_t block = 0; block < blocks;) {
    const auto super_end =
        static_cast<std::int32_t>(super_block_end(std::int64_t{block} * kBlock) / kBlock);
    if (block == change) regroup(block, window);
    change = open_drafts(block);
    block = std::min({super_end, change, blocks});
    if (block == super_end || block == blocks) finish_super_block(block, plan);
  }
  plan.pages.resize(pages_);
}

}  // namespace dendrite
