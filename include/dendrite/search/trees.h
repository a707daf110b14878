#pragma once

#include <limits>

#include "dendrite/search/common.h"

// Tree-of-Thoughts in three orders. All propose and judge in batches (see Steps), and hand the
// value of what they keep to the scheduler as the branch's priority.
namespace dendrite {

/// Breadth-first Tree-of-Thoughts (Yao et al. 2023, arXiv:2305.10601, algorithm 1): propose steps
/// from every node of the frontier, judge them all, keep the best `width`, repeat to `depth`.
/// Unsolved, the result is the best thought of the last depth (and of the leaves before it).
struct TreeOfThoughts {
  int depth = 3;
  int width = 5;
  Steps steps{};
  /// Asked of what is kept, best first. Default: none is.
  std::function<bool(const Branch& branch, const std::string& step)> solved{};
  std::function<void(const SearchEvent&)> on_event{};
  std::stop_token cancel{};
};
SearchResult run(Session& session, Branch root, const TreeOfThoughts& strategy);

/// Depth-first Tree-of-Thoughts with backtracking (the same, algorithm 2): enters the best child
/// first and comes back for the next where a subtree has no solution. What waits keeps its branch,
/// so that coming back computes nothing again. Unsolved, the result is the best leaf.
struct DepthFirst {
  int depth = 3;
  int width = 5;  ///< children of a node that are entered at most, best first
  /// Children of a lower value are not entered.
  double threshold = -std::numeric_limits<double>::infinity();
  std::int64_t max_nodes = 0;  ///< entered in all; 0: no limit
  Steps steps{};
  /// Asked of what is entered. Default: none is.
  std::function<bool(const Branch& branch, const std::string& step)> solved{};
  std::function<void(const SearchEvent&)> on_event{};
  std::stop_token cancel{};
};
SearchResult run(Session& session, Branch root, const DepthFirst& strategy);

/// Best-first search: of all thoughts not yet gone on from, whatever their depth, the best `batch`
/// are expanded at once. Equal values: the one proposed first. Unsolved, the result is the best
/// leaf.
struct BestFirst {
  int depth = 3;
  int batch = 1;
  std::int64_t max_expansions = 0;  ///< of nodes, the prompt's included; 0: no limit
  std::int64_t max_frontier = 0;    ///< the worst beyond are pruned; 0: no limit
  Steps steps{};
  /// Asked of every judged thought, best first. Default: none is.
  std::function<bool(const Branch& branch, const std::string& step)> solved{};
  std::function<void(const SearchEvent&)> on_event{};
  std::stop_token cancel{};
};
SearchResult run(Session& session, Branch root, const BestFirst& strategy);

}  // namespace dendrite
