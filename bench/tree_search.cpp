#include "tree_search.h"

#include <algorithm>
#include <numeric>

namespace dendrite::bench {
namespace {

/// The judge's greedy token is the score: any function of the path would do for timing.
std::vector<std::size_t> best(std::span<const Token> scores, int keep) {
  std::vector<std::size_t> order(scores.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
  order.resize(std::min(order.size(), static_cast<std::size_t>(keep)));
  return order;
}

}  // namespace

void TreeSearch::add_to(CLI::App& app) {
  add_count(app, "--prompt-length,--prefix", prompt_length, "Tokens of the root's prompt");
  add_count(app, "--depth,--tree-depth", depth, "Levels");
  add_count(app, "--branch,--branch-factor", branch, "Children of a kept path");
  add_count(app, "--keep", keep, "Paths that go on to the next level");
  add_count(app, "--length", length, "Tokens of a child");
  add_count(app, "--judge-length", judge_length, "Tokens of the judge's suffix");
  app.add_option("--temperature", temperature, "0: greedy")->capture_default_str();
}

Json TreeSearch::params() const {
  return {{"depth", depth},   {"branch", branch},
          {"keep", keep},     {"prompt_length", prompt_length},
          {"length", length}, {"temperature", temperature}};
}

std::int64_t TreeSearch::kv_tokens_apart() const {
  const std::int64_t path = prompt_length + depth * length + judge_length + 32;
  return 2 * path * keep * branch;
}

std::int64_t TreeSearch::run(TreeMachine& machine, std::int64_t vocab, int trial) const {
  const auto seed = static_cast<std::uint64_t>(2 * trial);
  const std::vector<Token> suffix = random_tokens(judge_length, vocab, seed + 1);
  std::int64_t generated = 0;
  std::vector<TreeMachine::Node> kept{machine.begin(random_tokens(prompt_length, vocab, seed))};
  for (int level = 0; level < depth; ++level) {
    std::vector<TreeMachine::Node> children;
    for (const TreeMachine::Node parent : kept) {
      for (int i = 0; i < branch; ++i) children.push_back(machine.child(parent, {}));
    }
    machine.generate(children, length, temperature);
    std::vector<TreeMachine::Node> judges;
    for (const TreeMachine::Node child : children) judges.push_back(machine.child(child, suffix));
    const std::vector<Token> scores = machine.generate(judges, 1, 0);
    generated += std::ssize(children) * length + std::ssize(judges);
    for (const TreeMachine::Node node : judges) machine.drop(node);
    for (const TreeMachine::Node node : kept) machine.drop(node);
    kept.clear();
    for (const std::size_t index : best(scores, keep)) kept.push_back(children[index]);
    for (const TreeMachine::Node node : children) {
      if (std::find(kept.begin(), kept.end(), node) == kept.end()) machine.drop(node);
    }
  }
  return generated;
}

}  // namespace dendrite::bench
