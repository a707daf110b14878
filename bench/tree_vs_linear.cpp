#include "tree_comparison.h"
#include "tree_search.h"

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
  TreeSearch search;
};

void run(const SearchOptions& options) {
  const TreeSearch& search = options.search;
  const Engine engine = options.comparison.load(search.kv_tokens_apart());
  compare("tree-vs-linear", options.comparison, engine, search.params(),
          [&](TreeMachine& machine, int trial) {
            return search.run(machine, engine.info().vocab, trial);
          });
}

}  // namespace

void add_tree_vs_linear(CLI::App& app) {
  auto options = std::make_shared<SearchOptions>();
  CLI::App* command = app.add_subcommand(
      "tree-vs-linear", "A breadth-first search with a judge: as a tree, and request by request");
  options->comparison.add_to(*command);
  options->search.add_to(*command);
  command->callback([options] { run(*options); });
}

}  // namespace dendrite::bench
