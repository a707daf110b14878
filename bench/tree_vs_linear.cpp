#include <algorithm>
#include <numeric>

#include "tree_comparison.h"

// tree-vs-linear: a breadth-first search in which every kept path gets `branch` children of
// `length` sampled tokens, a judge reads each child (a suffix and one greedy token) and the best
// `keep` go on. The root's prompt is new in each trial and its prefill counts. As a tree, children
// and judges are forks. Beside it, in the same engine with the same kernels and batches: as
// independent requests to a radix prefix cache and to a cache of whole pages, and as requests that
// compute their whole path.

namespace dendrite::bench {
namespace {

struct SearchOptions {
  ComparisonOptions comparison;
  std::int64_t prompt_length = 1024;
  int depth = 5;
  int branch = 4;
  int keep = 4;
  std::int64_t length = 64;
  std::int64_t judge_length = 16;
  double temperature = 0.7;
};

/// The judge's greedy token is the score: any function of the path would do for timing.
std::vector<std::size_t> best(std::span<const Token> scores, int keep) {
  std::vector<std::size_t> order(scores.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return scores[a] > scores[b]; });
  order.resize(std::min(order.size(), static_cast<std::size_t>(keep)));
  return order;
}

std::int64_t search(const SearchOptions& options, std::int64_t vocab, TreeMachine& machine,
                    int trial) {
  const auto seed = static_cast<std::uint64_t>(2 * trial);
  const std::vector<Token> suffix = random_tokens(options.judge_length, vocab, seed + 1);
  std::int64_t generated = 0;
  std::vector<TreeMachine::Node> kept{
      machine.begin(random_tokens(options.prompt_length, vocab, seed))};
  for (int level = 0; level < options.depth; ++level) {
    std::vector<TreeMachine::Node> children;
    for (const TreeMachine::Node parent : kept) {
      for (int i = 0; i < options.branch; ++i) children.push_back(machine.child(parent, {}));
    }
    machine.generate(children, options.length, options.temperature);
    std::vector<TreeMachine::Node> judges;
    for (const TreeMachine::Node child : children) judges.push_back(machine.child(child, suffix));
    const std::vector<Token> scores = machine.generate(judges, 1, 0);
    generated += std::ssize(children) * options.length + std::ssize(judges);
    for (const TreeMachine::Node node : judges) machine.drop(node);
    for (const TreeMachine::Node node : kept) machine.drop(node);
    kept.clear();
    for (const std::size_t index : best(scores, options.keep)) kept.push_back(children[index]);
    for (const TreeMachine::Node node : children) {
      if (std::find(kept.begin(), kept.end(), node) == kept.end()) machine.drop(node);
    }
  }
  return generated;
}

void run(const SearchOptions& options) {
  // Without sharing, all children and their judges hold whole paths at once.
  const std::int64_t path =
      options.prompt_length + options.depth * options.length + options.judge_length + 32;
  const Engine engine = options.comparison.load(2 * path * options.keep * options.branch);
  const Json params{{"depth", options.depth},   {"branch", options.branch},
                    {"keep", options.keep},     {"prompt_length", options.prompt_length},
                    {"length", options.length}, {"temperature", options.temperature}};
  compare("tree-vs-linear", options.comparison, engine, params,
          [&](TreeMachine& machine, int trial) {
            return search(options, engine.info().vocab, machine, trial);
          });
}

}  // namespace

void add_tree_vs_linear(CLI::App& app) {
  auto options = std::make_shared<SearchOptions>();
  CLI::App* command = app.add_subcommand(
      "tree-vs-linear", "A breadth-first search with a judge: as a tree, and request by request");
  options->comparison.add_to(*command);
  add_count(*command, "--prompt-length,--prefix", options->prompt_length,
            "Tokens of the root's prompt");
  add_count(*command, "--depth,--tree-depth", options->depth, "Levels");
  add_count(*command, "--branch,--branch-factor", options->branch, "Children of a kept path");
  add_count(*command, "--keep", options->keep, "Paths that go on to the next level");
  add_count(*command, "--length", options->length, "Tokens of a child");
  add_count(*command, "--judge-length", options->judge_length, "Tokens of the judge's suffix");
  command->add_option("--temperature", options->temperature, "0: greedy")->capture_default_str();
  command->callback([options] { run(*options); });
}

}  // namespace dendrite::bench
