#include "draft/lattice.h"

#include <cmath>
#include <cstddef>
#include <queue>
#include <tuple>

namespace dendrite {
namespace {

/// The best child of a node that is not in the tree yet.
struct Candidate {
  double score = 0;
  std::int32_t depth = 0;
  std::size_t order = 0;  // in which it was found
  std::int32_t parent = -1;
  std::size_t rank = 0;  // among its parent's children

  bool operator<(const Candidate& other) const {  // the largest is taken first
    return std::tuple(score, -depth, -std::ptrdiff_t(order)) <
           std::tuple(other.score, -other.depth, -std::ptrdiff_t(other.order));
  }
};

class Builder {
 public:
  Builder(Lattice& lattice, const DraftLimits& limits) : lattice_(lattice), limits_(limits) {}

  std::vector<DraftNode> build() {
    look_below(-1, Lattice::kRoot);
    if (limits_.chain_first) add_chain();
    while (std::ssize(nodes_) < limits_.nodes && !open_.empty()) {
      const Candidate best = open_.top();
      if (best.score < std::log(limits_.least)) break;  // (all others are less likely)
      open_.pop();
      add(best);
    }
    return std::move(nodes_);
  }

 private:
  void add(const Candidate& at) {
    const DraftChild child = children_of(at.parent)[at.rank];
    nodes_.push_back({child.token, at.parent, at.depth, at.score, child.kind});
    offer(at.parent, at.rank + 1);
    if (at.depth < limits_.depth) {
      look_below(static_cast<std::int32_t>(nodes_.size()) - 1, child.key);
    } else {
      children_.emplace_back();
    }
  }

  /// The first child of the root, of that one, and so on. Each is the last that was offered below.
  void add_chain() {
    std::vector<Candidate> others;
    while (std::ssize(nodes_) < limits_.nodes) {
      const std::int32_t last = static_cast<std::int32_t>(nodes_.size()) - 1;
      while (!open_.empty() && (open_.top().parent != last || open_.top().rank != 0)) {
        others.push_back(open_.top());
        open_.pop();
      }
      if (open_.empty()) break;
      const Candidate first = open_.top();
      open_.pop();
      add(first);
    }
    for (const Candidate& other : others) open_.push(other);
  }

  const std::vector<DraftChild>& children_of(std::int32_t node) const {
    return children_[static_cast<std::size_t>(node + 1)];
  }

  void look_below(std::int32_t node, std::int32_t key) {
    const std::span<const DraftChild> children = lattice_.children(key);
    children_.emplace_back(children.begin(), children.end());
    offer(node, 0);
  }

  void offer(std::int32_t parent, std::size_t rank) {
    const std::vector<DraftChild>& children = children_of(parent);
    if (rank >= children.size()) return;
    const DraftNode above = parent < 0 ? DraftNode{.depth = 0} : nodes_[std::size_t(parent)];
    open_.push({above.score + children[rank].logw, above.depth + 1, found_++, parent, rank});
  }

  Lattice& lattice_;
  const DraftLimits limits_;
  std::vector<DraftNode> nodes_;
  std::vector<std::vector<DraftChild>> children_;  // of the root, then of each node
  std::priority_queue<Candidate> open_;
  std::size_t found_ = 0;
};

}  // namespace

std::vector<DraftNode> build_draft(Lattice& lattice, const DraftLimits& limits) {
  if (limits.nodes <= 0 || limits.depth <= 0) return {};
  return Builder(lattice, limits).build();
}

}  // namespace dendrite
