#include <algorithm>
#include <numeric>

#include "machine.h"
#include "models.h"
#include "options.h"

// tree-vs-linear: a breadth-first search in which every kept path gets `branch` children of
// `length` sampled tokens, a judge reads each child (a suffix and one greedy token) and the best
// `keep` go on. The root's prompt is new in each trial and its prefill counts. As a tree, children
// and judges are forks; linearly, every child and every judge is a prompt of its own and shares
// nothing. Same kernels and batching on both sides.

namespace dendrite::bench {
namespace {

struct SearchOptions {
  CommonOptions common;
  std::int64_t prompt_length = 1024;
  int depth = 5;
  int branch = 4;
  int keep = 4;
  std::int64_t length = 64;
  std::int64_t judge_length = 16;
  double temperature = 0.7;
  int trials = 16;
  bool linear = true;
};

struct Search {
  double seconds = 0;
  std::int64_t generated = 0;
  Stats stats;
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

class SearchBench {
 public:
  explicit SearchBench(const SearchOptions& options) : options_(options), engine_(load(options)) {}

  void run() {
    Report report("tree-vs-linear");
    report.describe(engine_, options_.common.model_name());
    const Json params{{"depth", options_.depth},   {"branch", options_.branch},
                      {"keep", options_.keep},     {"prompt_length", options_.prompt_length},
                      {"length", options_.length}, {"temperature", options_.temperature}};
    std::vector<double> tree_s, linear_s, ratios;
    Search tree;
    Search linear;
    search(0, true);  // the first one also makes what later ones find made
    for (int trial = 1; trial <= options_.trials; ++trial) {
      tree = search(trial, true);
      tree_s.push_back(tree.seconds);
      if (!options_.linear) continue;
      linear = search(trial, false);
      linear_s.push_back(linear.seconds);
      ratios.push_back(linear.seconds / tree.seconds);
    }
    report.add("tree", params, "s", tree_s);
    report.add_value("tokens generated", params, "tokens", static_cast<double>(tree.generated));
    report.add_value("tokens computed, tree", params, "tokens",
                     static_cast<double>(tree.stats.tokens_computed));
    if (options_.linear) {
      report.add("linear", params, "s", linear_s);
      report.add_value("tokens computed, linear", params, "tokens",
                       static_cast<double>(linear.stats.tokens_computed));
      report.add_ratio("tree_vs_reprefill", params, ratios, median(tree_s), median(linear_s));
    }
    if (!options_.common.json.empty()) report.write_json(options_.common.json);
  }

 private:
  static Engine load(const SearchOptions& options) {
    CommonOptions common = options.common;
    common.engine.prefix_index = false;
    if (common.engine.kv_tokens == 0) {
      const std::int64_t path =
          options.prompt_length + options.depth * options.length + options.judge_length + 32;
      // Linearly, all children and their judges hold whole paths at once.
      common.engine.kv_tokens = 2 * path * options.keep * options.branch;
    }
    return common.load();
  }

  std::vector<Token> random(std::int64_t count, std::uint64_t seed) const {
    return random_tokens(count, engine_.info().vocab, seed);
  }

  Search search(int trial, bool as_tree) {
    const auto seed = static_cast<std::uint64_t>(2 * trial);
    const std::vector<Token> prompt = random(options_.prompt_length, seed);
    const std::vector<Token> suffix = random(options_.judge_length, seed + 1);
    Search result;
    Session session(engine_, {.seed = seed});
    const double begin = now_seconds();
    std::vector<Branch> kept;
    kept.push_back(session.prefill(prompt));
    for (int level = 0; level < options_.depth; ++level) {
      std::vector<Branch> children;
      for (Branch& parent : kept) {
        for (int i = 0; i < options_.branch; ++i) {
          children.push_back(as_tree ? parent.fork() : session.prefill(parent.tokens()));
        }
      }
      result.generated += generate(session, children, options_.length, options_.temperature);
      std::vector<Branch> judges;
      for (Branch& child : children) {
        if (as_tree) {
          judges.push_back(child.fork());
          judges.back().append(suffix);
        } else {
          std::vector<Token> tokens = child.tokens();
          tokens.insert(tokens.end(), suffix.begin(), suffix.end());
          judges.push_back(session.prefill(tokens));
        }
      }
      std::vector<Token> scores;
      result.generated += generate(session, judges, 1, 0, &scores);
      std::vector<Branch> next;
      for (const std::size_t index : best(scores, options_.keep)) {
        next.push_back(std::move(children[index]));
      }
      kept = std::move(next);
    }
    result.seconds = now_seconds() - begin;
    result.stats = session.stats();
    return result;
  }

  static std::int64_t generate(Session& session, std::vector<Branch>& branches, std::int64_t tokens,
                               double temperature, std::vector<Token>* last = nullptr) {
    DecodeParams params;
    params.max_tokens = tokens;
    params.temperature = temperature;
    params.ignore_eos = true;
    std::int64_t count = 0;
    for (const Generation& generation : session.decode(branches, params)) {
      count += std::ssize(generation.ids);
      if (last != nullptr) last->push_back(generation.ids.back());
    }
    return count;
  }

  const SearchOptions& options_;
  Engine engine_;
};

}  // namespace

void add_tree_vs_linear(CLI::App& app) {
  auto options = std::make_shared<SearchOptions>();
  CLI::App* command = app.add_subcommand(
      "tree-vs-linear", "A breadth-first search with a judge: as a tree, and prompt by prompt");
  options->common.add_to(*command);
  const auto number = [&](const char* name, auto& value, const char* help) {
    command->add_option(name, value, help)->check(CLI::Range(1, 1 << 20))->capture_default_str();
  };
  number("--prompt-length,--prefix", options->prompt_length, "Tokens of the root's prompt");
  number("--depth", options->depth, "Levels");
  number("--branch", options->branch, "Children of a kept path");
  number("--keep", options->keep, "Paths that go on to the next level");
  number("--length", options->length, "Tokens of a child");
  number("--judge-length", options->judge_length, "Tokens of the judge's suffix");
  number("--trials", options->trials, "Trials");
  command->add_option("--temperature", options->temperature, "0: greedy")->capture_default_str();
  command->add_flag("!--no-linear", options->linear, "The tree alone");
  command->callback([options] { SearchBench(*options).run(); });
}

}  // namespace dendrite::bench
