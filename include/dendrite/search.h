#pragma once

#include <functional>
#include <string>
#include <vector>

#include "dendrite/session.h"

namespace dendrite {

/// One step of reasoning: a branch that ends with it.
struct Thought {
  Branch branch;
  std::string text;  ///< of this step alone
  BranchId parent = BranchId::kNone;
  int depth = 0;      ///< 1 for the first step
  double value = 0;   ///< the judge's; larger is better
  bool kept = false;  ///< survived pruning at its depth
};

/// What a search tells while it runs.
struct SearchEvent {
  enum class Kind : std::uint8_t { kProposed, kJudged, kKept, kPruned, kSolved } kind;
  const Thought* thought = nullptr;
};

/// A thought as the record of a finished search keeps it (its branch may be gone).
struct ThoughtRecord {
  BranchId branch = BranchId::kNone;
  BranchId parent = BranchId::kNone;
  int depth = 0;
  std::string text;
  double value = 0;
  bool kept = false;
};

struct SearchResult {
  bool solved = false;
  Branch branch;  ///< the solution's; else the best at the last depth, empty if none got there
  std::vector<ThoughtRecord> path;   ///< from the first step to that branch's last
  std::vector<ThoughtRecord> tree;   ///< everything judged, in the order of proposal
  Finish finish = Finish::kRunning;  ///< kStop: it ran to its end; kBudget, kCancelled: cut short
};

/// Children of a frontier: children[i] are steps from nodes[i].
struct Proposals {
  std::vector<std::vector<Branch>> children;
  Finish finish = Finish::kRunning;  ///< kBudget or kCancelled: not all could be computed
};

/// Breadth-first Tree-of-Thoughts (Yao et al. 2023, arXiv:2305.10601, algorithm 1): propose steps
/// from every node of the frontier, judge them all, keep the best `width`, repeat to `depth`.
struct TreeOfThoughts {
  int depth = 3;
  int width = 5;

  /// Children of the whole frontier, in one batch where it can.
  /// Default: `candidates` samples per node up to a newline, equal texts once.
  std::function<Proposals(Session&, std::span<Branch> nodes)> propose{};
  /// A value for each candidate; default: the mean log-prob of the tokens of its last step.
  std::function<std::vector<double>(Session&, std::span<Branch> candidates)> judge{};
  /// Whether a step may be kept at all (for example: it is legal). Default: yes.
  std::function<bool(const Branch& branch, const std::string& step)> accept{};
  /// Whether a kept step is a solution and ends the search. Default: none is.
  std::function<bool(const Branch& branch, const std::string& step)> solved{};
  std::function<void(const SearchEvent&)> on_event{};

  int candidates = 8;        ///< of the default proposer
  double temperature = 1.0;  ///< of the default proposer
  std::int64_t max_step_tokens = 128;
  std::stop_token cancel{};
};

/// What Session::run_tree calls; free, since a strategy needs nothing but the public API.
SearchResult run_tree_of_thoughts(Session& session, Branch root, const TreeOfThoughts& strategy);

/// All continuations of each node up to `stop` whose probability, given the node, is at least
/// `min_prob` (> 0): a wide expansion over forked branches, one batch a token. Each child ends with
/// `stop`.
Proposals expand_until(Session& session, std::span<Branch> nodes, Token stop, double min_prob,
                       std::int64_t max_tokens, std::stop_token cancel = {});

}  // namespace dendrite
