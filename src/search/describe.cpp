#include <charconv>

#include "dendrite/search/trace.h"

namespace dendrite {
namespace {

/// The shortest text that reads back as the same number.
std::string text_of(double value) {
  char buffer[32];
  const auto [end, error] = std::to_chars(buffer, buffer + sizeof buffer, value);
  return {buffer, end};
}
std::string text_of(std::int64_t value) {
  return std::to_string(value);
}
std::string text_of(int value) {
  return std::to_string(value);
}
std::string text_of(bool value) {
  return value ? "true" : "false";
}

/// Collects parameters by name.
class Params {
 public:
  template <typename T>
  Params& add(const std::string& name, const T& value) {
    params_.emplace_back(name, text_of(value));
    return *this;
  }
  template <typename T>
  Params& add(const std::string& name, const std::optional<T>& value) {
    return value ? add(name, *value) : *this;
  }
  Params& add(const std::string& name, const std::string& value) {
    params_.emplace_back(name, value);
    return *this;
  }
  Params& add(const std::string& name, const std::vector<Token>& tokens) {
    std::string text;
    for (const Token token : tokens) {
      if (!text.empty()) text += ',';
      text += std::to_string(token);
    }
    params_.emplace_back(name, text);
    return *this;
  }
  /// Those of the default proposer, where it is what proposes. Evaluator threads, groups and
  /// speculation change no result.
  Params& add(const Steps& steps) {
    if (steps.propose) return *this;
    return add("candidates", steps.candidates)
        .add("temperature", steps.temperature)
        .add("max_step_tokens", steps.max_step_tokens);
  }
  Params& add(const std::string& prefix, const DecodeParams& params) {
    add(prefix + ".max_tokens", params.max_tokens);
    for (std::size_t i = 0; i < params.stop.size(); ++i) {
      params_.emplace_back(prefix + ".stop." + std::to_string(i), params.stop[i]);
    }
    add(prefix + ".stop_tokens", params.stop_tokens);
    add(prefix + ".temperature", params.temperature);
    add(prefix + ".top_k", params.top_k).add(prefix + ".top_p", params.top_p);
    add(prefix + ".min_p", params.min_p);
    add(prefix + ".repetition_penalty", params.repetition_penalty);
    return add(prefix + ".ignore_eos", params.ignore_eos);
  }
  StrategyInfo of(const char* strategy) { return {strategy, std::move(params_)}; }

 private:
  TraceParams params_;
};

}  // namespace

StrategyInfo describe(const TreeOfThoughts& s) {
  return Params().add("depth", s.depth).add("width", s.width).add(s.steps).of("tree-of-thoughts");
}

StrategyInfo describe(const DepthFirst& s) {
  return Params()
      .add("depth", s.depth)
      .add("width", s.width)
      .add("threshold", s.threshold)
      .add("max_nodes", s.max_nodes)
      .add(s.steps)
      .of("depth-first");
}

StrategyInfo describe(const BestFirst& s) {
  return Params()
      .add("depth", s.depth)
      .add("batch", s.batch)
      .add("max_expansions", s.max_expansions)
      .add("max_frontier", s.max_frontier)
      .add(s.steps)
      .of("best-first");
}

StrategyInfo describe(const BeamSearch& s) {
  return Params()
      .add("width", s.width)
      .add("max_tokens", s.max_tokens)
      .add("stop_tokens", s.stop_tokens)
      .add("length_penalty", s.length_penalty)
      .add("groups", s.groups)
      .add("diversity", s.diversity)
      .of("beam");
}

StrategyInfo describe(const BestOfN& s) {
  return Params()
      .add("n", s.n)
      .add("first_success", s.first_success)
      .add("sampling", s.sampling)
      .of("best-of-n");
}

StrategyInfo describe(const SelfConsistency& s) {
  return Params()
      .add("n", s.n)
      .add("confidence", s.confidence)
      .add("sampling", s.sampling)
      .of("self-consistency");
}

StrategyInfo describe(const Mcts& s) {
  Params params;
  params.add("exploration", s.exploration)
      .add("iterations", s.iterations)
      .add("batch", s.batch)
      .add("depth", s.depth)
      .add("loss", s.loss)
      .add("rollouts", s.rollouts);
  if (s.rollouts > 0) params.add("rollout", s.rollout);
  return params.add("budget.tokens", s.budget.tokens)
      .add("budget.milliseconds", s.budget.milliseconds)
      .add(s.steps)
      .of(s.rule == Mcts::Rule::kUct ? "mcts-uct" : "mcts-puct");
}

StrategyInfo describe(const SelfRefinement& s) {
  Params params;
  params.add("rounds", s.rounds).add("drafts", s.drafts).add("draft", s.draft);
  if (s.revision) params.add("revision", *s.revision);
  return params.of("self-refinement");
}

StrategyInfo describe(const ForkJoin& s) {
  Params params;
  params.add("open", s.open)
      .add("open_tokens", s.open_tokens)
      .add("close", s.close)
      .add("close_tokens", s.close_tokens);
  if (!s.begin) params.add("children", s.children);
  return params.add("max_forks", s.max_forks)
      .add("nesting", s.nesting)
      .add("trunk", s.trunk)
      .add("child", s.child)
      .add("join.exact", s.join.mode == ComposeParams::Mode::kExact)
      .add("join.first", s.join.repair.first)
      .add("join.last", s.join.repair.last)
      .add("join.before_each", s.join.before_each)
      .add("join.after_all", s.join.after_all)
      .add("join.target_kl", s.join.target_kl)
      .of("fork-join");
}

}  // namespace dendrite
