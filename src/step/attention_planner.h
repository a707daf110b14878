#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "backend/attention_plan.h"

namespace dendrite {

/// Consecutive rows of a batch that are consecutive positions of one branch.
struct PlanSequence {
  std::span<const std::int32_t> table;  // flat page table, covers the last row's position
  std::int64_t first_position = 0;
  std::int32_t rows = 0;    // at least 1
  std::int64_t common = 0;  // it is known to have so many pages in common with the one before it
  // KvTree::TableMark of the table. A planner that has seen another with this stamp does not look
  // at the entries again that were settled then; 0: it does.
  std::uint64_t stamp = 0;
  std::int64_t settled = 0;
};

/// Where the table has a position: page * page_tokens + offset.
inline std::int64_t slot_at(std::span<const std::int32_t> table, std::int64_t position,
                            std::int64_t page_tokens) {
  const std::int64_t page = table[static_cast<std::size_t>(position / page_tokens)];
  return page * page_tokens + position % page_tokens;
}

/// Turns the branches of a batch into an AttentionPlan: which pages are read once for which rows.
///
/// Neighbours share: rows of sequences that are next to each other in the batch and have identical
/// pages over a block are one item there, so a batch built in the order of order() reads each
/// shared page once. Grouping never changes a row's result, only how often pages are read: blocks
/// and super-blocks are cut at absolute positions.
///
/// Tables are compared once, by order(), and what stays the same over a run of blocks is handled in
/// one go: the cost is one memcmp of the tables plus O(items + sequences) per change. A step that
/// differs from the one before by a token a branch, within the same pages, costs
/// O(items + sequences) and no look at settled pages; the results are the same to the byte.
class AttentionPlanner {
 public:
  /// Requires: page_tokens divides kBlockTokens.
  explicit AttentionPlanner(std::int64_t page_tokens);

  /// false: every sequence reads its pages by itself, as engines do that share memory alone. For
  /// benches: what sharing reads is worth. Before the first build().
  void share_reads(bool share) { share_reads_ = share; }

  /// A depth-first order of the tree that the tables are paths of: sequences with a longer common
  /// prefix of pages are nearer each other, ancestors first. Depends on the arguments alone.
  void order(std::span<const PlanSequence> sequences, std::vector<std::int32_t>& order);
  /// Of the last order(), by place: pages in common with the sequence one place before.
  const std::vector<std::int64_t>& common() const { return common_; }

  /// `sequences` in batch row order. Overwrites `plan`, reusing its
  /// memory, and what is still true in it. Requires: no other planner, nor tables of another tree,
  /// have been there.
  void build(std::span<const PlanSequence> sequences, AttentionWindow window, AttentionPlan& plan);

 private:
  static constexpr std::int32_t kNever = std::numeric_limits<std::int32_t>::max();
  static constexpr std::int32_t kNone = -1;

  /// A sequence as the current block sees it. A cache line: there may be more than caches hold.
  struct alignas(64) Sequence {
    const std::int32_t* table = nullptr;
    std::int64_t first_position = 0;
    std::int32_t rows = 0;
    std::int32_t pages = 0;      // used entries of the table
    std::int32_t common = 0;     // pages known to be the previous sequence's
    std::int32_t batch_row = 0;  // of its first row
    // Rows [row_begin, row_end), counted from batch_row, see something of this block ...
    std::int32_t row_begin = 0;
    std::int32_t row_end = 0;
    std::int32_t rows_until = 0;  // ... until this block, where that may change
    // It has the previous sequence's pages in this block, and at most one side may have more ...
    std::int32_t joins_until = 0;  // ... until this block
    bool joins_previous = false;
  };
  /// Neighbours whose rows see the current block through the same pages, or that see nothing yet.
  struct Group {
    bool sees() const { return row_begin < row_end; }

    std::int64_t position_end = 0;  // one past the last position that any of its rows may see
    std::int32_t first = 0;         // sequences
    std::int32_t last = 0;
    std::int32_t row_begin = 0;
    std::int32_t row_end = 0;
    std::int32_t until = 0;      // it stays as it is until this block
    std::int32_t draft = kNone;  // the item that it is in
    bool joins = false;          // its first row sees the block as the row before it does
    bool open = false;           // its last row is its sequence's, and sees the block
  };
  /// An item of the current super-block. That of a group may still grow.
  struct Draft {
    std::int64_t position_end = 0;
    std::int32_t block_begin = 0;
    std::int32_t block_end = 0;
    std::int32_t row_begin = 0;
    std::int32_t row_end = 0;
    std::int32_t source = 0;  // the sequence whose table is copied
  };

  /// A sequence as the last order() saw it.
  struct Known {
    std::uint64_t stamp = 0;
    std::int64_t settled = 0;
  };

  bool order_holds(std::span<const PlanSequence> sequences);
  void sort(std::span<const PlanSequence> sequences);
  bool advance(std::span<const PlanSequence> sequences, AttentionWindow window,
               AttentionPlan& plan) const;
  void set_sources(std::span<const PlanSequence> sequences, AttentionPlan& plan) const;
  bool joins(const Sequence& previous, const Sequence& s, std::int32_t block) const;
  void update_rows(Sequence& s, std::int32_t block, AttentionWindow window) const;
  void update_joins(const Sequence& previous, Sequence& s, std::int32_t block) const;
  std::int32_t add_sequences(std::span<const PlanSequence> sequences, AttentionPlan& plan);
  void regroup(std::int32_t block, AttentionWindow window);
  Group* joined(std::int32_t sequence, bool joins);
  Group* unseen_before(std::int32_t sequence);
  void extend(Group& group, std::int32_t last, std::int32_t row_end, std::int64_t position_end,
              std::int32_t until, std::int32_t block);
  void close(const Group& group, std::int32_t block);
  std::int32_t open_drafts(std::int32_t block);
  void add_item(const Draft& draft, AttentionPlan& plan);
  void finish_super_block(std::int32_t block, AttentionPlan& plan);

  int page_shift_;        // logarithm of page_tokens
  int block_page_shift_;  // of the pages a block has
  bool share_reads_ = true;
  std::vector<std::int64_t> common_;
  std::vector<std::int32_t> order_;  // the last one
  std::vector<Known> known_;         // by index, of the last order()
  std::vector<std::uint64_t>
      sorted_;  // by place: the first page that not all have, and which it is
  std::vector<Sequence> sequences_;
  std::vector<Group> groups_;  // by row; what has ended is in none
  std::vector<Group> next_groups_;
  std::vector<Draft> drafts_;  // of the current super-block, by (block_begin, row_begin)
  std::size_t pages_ = 0;      // of the plan so far
};

}  // namespace dendrite
