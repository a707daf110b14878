#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dendrite/types.h"

namespace dendrite {

/// A token that may come next, as whoever proposes tokens sees it.
struct DraftChild {
  Token token = 0;
  float logw = 0;         // log of the chance that it is what comes, <= 0
  std::int32_t key = 0;   // what it is asked by for those after it
  std::int32_t kind = 0;  // how it was found, for who learns from what comes of it
};

/// Whoever proposes tokens: a lattice of what may follow, from a root on.
class Lattice {
 public:
  virtual ~Lattice() = default;
  static constexpr std::int32_t kRoot = 0;
  /// Likeliest first, each token once. Asked once for each node; valid until the next call.
  virtual std::span<const DraftChild> children(std::int32_t key) = 0;
};

/// One drafted token. Parents come before their children.
struct DraftNode {
  Token token = 0;
  std::int32_t parent = -1;  // index of its node; -1: it follows the branch's last token
  std::int32_t depth = 1;
  double score = 0;  // log of the chance that it and all before it come
  std::int32_t kind = 0;
};

/// What is proposed after one text.
struct Draft {
  std::vector<DraftNode> nodes;
  std::size_t level = 0;  // what it is from, for who learns from what comes of it
};

struct DraftLimits {
  std::int64_t nodes = 0;
  std::int64_t depth = 0;
  double least = 0;  // chance that a node must have to be worth its row
  /// The likeliest token of each depth comes first, whatever its chance, then the others.
  bool chain_first = false;
};

/// The tree of at most `limits.nodes` nodes that holds most of what comes, in expectation under the
/// lattice's chances: the likeliest prefixes, best first (DDTree, arXiv 2604.12989: with chances
/// that never grow along a path, the best set is closed under prefixes). Ties go to the shallower
/// node, then to the one that was found first. O(nodes log nodes) beside the lattice's own work.
std::vector<DraftNode> build_draft(Lattice& lattice, const DraftLimits& limits);

}  // namespace dendrite
