#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "draft/lattice.h"
#include "draft/purse.h"

namespace dendrite {

/// How many rows of a step are for drafts, and whose: one budget for the drafts of all lanes. The
/// nodes that are likeliest to be taken, each by its branch's value, get rows as long as the step
/// gives more tokens a ms with them than without, by what steps of so many rows take (the
/// cost-aware tree of CaDDTree, arXiv 2606.01813, over all lanes at once). Drafts that are right
/// less often than they say stop when they have lost what a purse allows.
class DraftBudget {
 public:
  struct Claim {
    std::span<const DraftNode> nodes;  // parents first, chances never grow along a path
    double value = 1;                  // of a token of its branch, beside the others'
  };
  /// The step as it would be without drafts.
  struct Step {
    std::int64_t rows = 0;   // > 0
    std::int64_t lanes = 0;  // that get a token of it, > 0
    double value = 0;        // of those tokens
    /// How long a step of so many rows takes; nothing where that is not known.
    std::function<std::optional<double>(std::int64_t rows)> step_ms;
  };
  /// A node that gets a row, and what is before it does, too.
  struct Pick {
    std::size_t claim = 0;
    std::int32_t node = 0;
  };
  /// The best first. None before a turn without drafts was seen, and one now and then to see it
  /// again. O(n log n) for n nodes in all.
  std::vector<Pick> choose(std::span<const Claim> claims, const Step& step) const;

  /// A turn of so many lanes took so long. Turns in which other rows were computed are none to
  /// learn from.
  void record_plain(std::int64_t lanes, double ms);
  /// The same of one with drafts. `got`: tokens for each lane, on average; `step_ms`: what steps of
  /// its rows usually take.
  void record(std::int64_t lanes, double got, double ms, double step_ms);

 private:
  /// What is known for a number of lanes.
  struct Known {
    double beside_ms = 0;  // that a turn with drafts takes beside its step
    Purse purse;
  };

  PlainTurns plain_;
  ByLanes<Known> known_;
};

/// Leaves the nodes for which `keep` holds; no node may stay without its parent.
void keep_nodes(std::vector<DraftNode>& nodes, const std::vector<bool>& keep);

}  // namespace dendrite
