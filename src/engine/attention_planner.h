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
};

/// Turns the branches of a batch into an AttentionPlan: which pages are read once for which rows.
///
/// Neighbours share: rows of sequences that are next to each other in the batch and have identical
/// pages over a block are one item there, so a batch built in the order of order() reads each
/// shared page once. Grouping never changes a row's result, only how often pages are read: blocks
/// and super-blocks are cut at absolute positions.
///
/// Tables are compared once, by order(), and what stays the same over a run of blocks is handled in
/// one go: the cost is one memcmp of the tables plus O(items + sequences) per change.
class AttentionPlanner {
 public:
  /// Requires: page_tokens divides kBlockTokens.
  explicit AttentionPlanner(std::int64_t page_tokens);

  /// false: every sequence reads its pages by itself, as engines do that share memory alone. For
  /// benches: what sharing reads is worth.
  void share_reads(bool share) { share_reads_ = share; }

  /// A depth-first order of the tree that the tables are paths of: sequences with a longer common
  /// prefix of pages are nearer each other, ancestors first. Depends on the arguments alone.
  void order(std::span<const PlanSequence> sequences, std::vector<std::int32_t>& order);
  /// Of the last order(), by place: pages in common with the sequence one place before.
  const std::vector<std::int64_t>& common() const { return common_; }

  /// `sequences` in batch row order; window 0: full attention. Overwrites `plan`, reusing its
  /// memory.
  void build(std::span<const PlanSequence> sequences, std::int64_t window, AttentionPlan& plan);

 private:
  static constexpr std::int64_t kNever = std::numeric_limits<std::int64_t>::max();

  /// A sequence as the current block sees it.
  struct Sequence {
    const std::int32_t* table = nullptr;
    std::int64_t first_position = 0;
    std::int64_t rows = 0;
    std::int64_t pages = 0;      // used entries of the table
    std::int64_t common = 0;     // pages known to be the previous sequence's
    std::int64_t batch_row = 0;  // of its first row
    // Rows [row_begin, row_end), counted from batch_row, see something of this block ...
    std::int64_t row_begin = 0;
    std::int64_t row_end = 0;
    std::int64_t rows_until = 0;  // ... until this block, where that may change
    // It has the previous sequence's pages in this block, and at most one side may have more ...
    bool joins_previous = false;
    std::int64_t joins_until = 0;  // ... until this block
  };
  /// An item of the current super-block that may still grow.
  struct Draft {
    std::int64_t block_begin = 0;
    std::int64_t block_end = 0;
    std::int64_t position_end = 0;  // one past the last position that any of its rows may see
    std::int32_t row_begin = 0;
    std::int32_t row_end = 0;
    std::size_t source = 0;  // the sequence whose table is copied
  };

  std::int64_t pages_in_block(const Sequence& s, std::int64_t block) const;
  bool joins(const Sequence& previous, const Sequence& s, std::int64_t block) const;
  void update_rows(Sequence& s, std::int64_t block, std::int64_t window) const;
  void update_joins(const Sequence& previous, Sequence& s, std::int64_t block) const;
  void find_groups();
  void add_groups(std::int64_t block_begin, std::int64_t block_end);
  void finish_super_block(AttentionPlan& plan);

  std::int64_t page_tokens_;
  std::int64_t block_pages_;  // pages a block
  bool share_reads_ = true;
  std::vector<std::int64_t> common_;
  std::vector<Sequence> sequences_;
  std::vector<Draft> groups_;        // of the current block, without its place
  std::vector<Draft> drafts_;        // of the current super-block, by (block_begin, row_begin)
  std::vector<std::size_t> active_;  // drafts that end at the current block, by row
  std::vector<std::size_t> next_active_;
};

}  // namespace dendrite
