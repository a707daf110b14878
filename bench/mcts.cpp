#include <cmath>

#include "core/hash.h"
#include "tree_comparison.h"

// mcts: a Monte Carlo tree search (UCT). Each expansion adds a child of `length` sampled tokens to
// the node that the rule selects, plays `rollouts` of `rollout_length` tokens from it in one batch,
// and backs a value up. Values come from the trial's number, not from the tokens, so that the tree
// has the same shape on every machine. Machines: see tree-vs-linear.

namespace dendrite::bench {
namespace {

struct MctsOptions {
  ComparisonOptions comparison;
  std::int64_t prompt_length = 512;
  int expansions = 50;
  int rollouts = 20;
  int branch = 4;
  std::int64_t length = 16;
  std::int64_t rollout_length = 50;
  double temperature = 0.7;
};

struct SearchNode {
  TreeMachine::Node node = 0;
  std::size_t parent = 0;
  std::vector<std::size_t> children;
  double value = 0;  // sum
  int visits = 0;
};

/// The child with the largest Q + sqrt(2 ln N / n), down to a node with room for another child.
/// Source: Kocsis and Szepesvari 2006.
std::size_t select(const std::vector<SearchNode>& tree, int branch) {
  std::size_t at = 0;
  while (static_cast<int>(tree[at].children.size()) == branch) {
    double best = -1;
    std::size_t next = at;
    for (const std::size_t child : tree[at].children) {
      const double n = tree[child].visits;
      const double uct = tree[child].value / n + std::sqrt(2 * std::log(tree[at].visits) / n);
      if (uct > best) {
        best = uct;
        next = child;
      }
    }
    at = next;
  }
  return at;
}

std::int64_t search(const MctsOptions& options, std::int64_t vocab, TreeMachine& machine,
                    int trial) {
  std::vector<SearchNode> tree(1);
  tree[0].node =
      machine.begin(random_tokens(options.prompt_length, vocab, static_cast<std::uint64_t>(trial)));
  std::int64_t generated = 0;
  for (int i = 0; i < options.expansions; ++i) {
    const std::size_t parent = select(tree, options.branch);
    const TreeMachine::Node node = machine.child(tree[parent].node, {});
    machine.generate({&node, 1}, options.length, options.temperature);
    std::vector<TreeMachine::Node> rollouts;
    for (int r = 0; r < options.rollouts; ++r) rollouts.push_back(machine.child(node, {}));
    machine.generate(rollouts, options.rollout_length, options.temperature);
    for (const TreeMachine::Node rollout : rollouts) machine.drop(rollout);
    generated += options.length + options.rollouts * options.rollout_length;

    const std::int64_t key[] = {trial, i};
    const double value =
        static_cast<double>(hash_bytes(std::as_bytes(std::span(key))) >> 11) * 0x1p-53;
    tree[parent].children.push_back(tree.size());
    tree.push_back({node, parent, {}, 0, 0});
    for (std::size_t at = tree.size() - 1;; at = tree[at].parent) {
      tree[at].value += value;
      ++tree[at].visits;
      if (at == 0) break;
    }
  }
  return generated;
}

void run(const MctsOptions& options) {
  // No path is deeper than there are expansions; without sharing every node holds its own.
  const std::int64_t path = options.prompt_length + 12 * options.length + options.rollout_length;
  const Engine engine = options.comparison.load(2 * path * (options.expansions + options.rollouts));
  const Json params{{"expansions", options.expansions},
                    {"rollouts", options.expansions * options.rollouts},
                    {"rollout_length", options.rollout_length},
                    {"branch", options.branch},
                    {"prompt_length", options.prompt_length},
                    {"length", options.length},
                    {"temperature", options.temperature}};
  compare("mcts", options.comparison, engine, params, [&](TreeMachine& machine, int trial) {
    return search(options, engine.info().vocab, machine, trial);
  });
}

}  // namespace

void add_mcts(CLI::App& app) {
  auto options = std::make_shared<MctsOptions>();
  CLI::App* command = app.add_subcommand(
      "mcts", "A Monte Carlo tree search with rollouts: as a tree, and request by request");
  options->comparison.add_to(*command);
  add_count(*command, "--prompt-length,--prefix", options->prompt_length,
            "Tokens of the root's prompt");
  add_count(*command, "--expansions", options->expansions, "Nodes that are added");
  add_count(*command, "--rollouts", options->rollouts, "Rollouts from each");
  add_count(*command, "--rollout-length", options->rollout_length, "Tokens of a rollout");
  add_count(*command, "--branch", options->branch, "Children of a node at most");
  add_count(*command, "--length", options->length, "Tokens of a node");
  command->add_option("--temperature", options->temperature, "0: greedy")->capture_default_str();
  command->callback([options] { run(*options); });
}

}  // namespace dendrite::bench
