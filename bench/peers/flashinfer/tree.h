#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "backend/attention_plan.h"
#include "peers/flashinfer/kernels.h"

namespace dendrite::bench::fi {

constexpr std::int64_t kPageTokens = 16;

/// Nodes of one depth of a tree, a number of tokens each (whole pages). Every node has the same
/// number of children, and the leaves are the rows: the last token of each is a query.
struct TreeLevel {
  std::int64_t nodes = 1;
  std::int64_t tokens = 0;
};

/// A tree, its pages numbered level by level, for both sides of the comparison.
class Tree {
 public:
  explicit Tree(std::vector<TreeLevel> levels) : levels_(std::move(levels)) {}

  /// "32 x 4096 + 64", or "4096 / 8 x 512 / 128 x 128" for more than two levels.
  std::string name() const;
  std::int64_t rows() const { return levels_.back().nodes; }
  std::int64_t pages() const;
  std::size_t depth() const { return levels_.size(); }

  AttentionPlan plan() const;
  /// Each row with all pages of its path.
  Requests flat() const;
  /// Each node of a level with the rows below it.
  Requests level(std::size_t index) const;

 private:
  std::vector<std::int32_t> path(std::int64_t row) const;
  std::int64_t node_above(std::int64_t row, const TreeLevel& level) const {
    return row / (rows() / level.nodes);
  }

  std::vector<TreeLevel> levels_;
};

}  // namespace dendrite::bench::fi
