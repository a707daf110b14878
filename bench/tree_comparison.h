#pragma once

#include <functional>

#include "tree_machine.h"

namespace dendrite::bench {

/// Flags of benches that run one search on several machines.
struct ComparisonOptions {
  CommonOptions common;
  int trials = 16;
  std::vector<std::string> against = {"radix", "block", "reprefill"};
  std::string peer;

  void add_to(CLI::App& app);
  /// With `kv_tokens` unless the flags say otherwise.
  Engine load(std::int64_t kv_tokens) const;
};

/// Runs `search` on each machine in turns, `trials` times, after one run that does not count, and
/// reports seconds, tokens computed and the ratios tree_vs_radix, tree_vs_block, tree_vs_reprefill
/// and tree_vs_llamacpp (of the peer, whatever it is) under the name `bench`. `search` returns how
/// many tokens it generated.
void compare(const std::string& bench, const ComparisonOptions& options, const Engine& engine,
             const Json& params,
             const std::function<std::int64_t(TreeMachine&, int trial)>& search);

}  // namespace dendrite::bench
