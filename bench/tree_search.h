#pragma once

#include "options.h"
#include "tree_machine.h"

namespace dendrite::bench {

/// A breadth-first search in which every kept path gets `branch` children of `length` sampled
/// tokens, a judge reads each child (a suffix and one greedy token) and the best `keep` go on.
struct TreeSearch {
  std::int64_t prompt_length = 1024;
  int depth = 5;
  int branch = 4;
  int keep = 4;
  std::int64_t length = 64;
  std::int64_t judge_length = 16;
  double temperature = 0.7;

  void add_to(CLI::App& app);
  Json params() const;
  /// Without sharing, all children and their judges hold whole paths at once.
  std::int64_t kv_tokens_apart() const;
  /// The root's prompt is new in each trial. Returns how many tokens were generated.
  std::int64_t run(TreeMachine& machine, std::int64_t vocab, int trial) const;
};

}  // namespace dendrite::bench
