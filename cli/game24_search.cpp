#include "game24_search.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>
#include <sstream>
#include <utility>

namespace dendrite::game24 {
namespace {

// An S answer takes about 15 tokens a step and a closing "ok".
constexpr std::int64_t kTokensPerStep = 32;

std::int64_t answer_tokens(const Puzzle& puzzle) {
  return kTokensPerStep * static_cast<std::int64_t>(puzzle.numbers.size());
}

int steps_to_the_end(const Puzzle& puzzle) {
  return static_cast<int>(puzzle.numbers.size()) - 1;
}

/// The state after all steps of a text, nullopt when one of them is not legal.
std::optional<State> state_after(const Puzzle& puzzle, const std::string& text) {
  State state = puzzle.numbers;
  for (const std::string& step : steps_of(text)) {
    const std::optional<State> next = next_state(state, step);
    if (!next) return std::nullopt;
    state = *next;
  }
  return state;
}

bool is_solution(const Puzzle& puzzle, const Branch& branch) {
  return state_after(puzzle, branch.text()) == State{puzzle.target};
}

/// 1 or 0 for candidates of the last depth, the model's belief for the others: one batch, in which
/// both continuations of a branch share "?". One token of each label tells them apart.
std::vector<double> judge(Session& session, std::span<Branch> candidates, const Puzzle& puzzle,
                          const std::stop_token& cancel) {
  std::vector<double> values(candidates.size(), 0);
  std::vector<Branch> open;
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < candidates.size(); ++i) {
    if (std::ssize(steps_of(candidates[i].text())) == steps_to_the_end(puzzle)) {
      values[i] = is_solution(puzzle, candidates[i]) ? 1 : 0;
    } else {
      open.push_back(std::move(candidates[i]));
      places.push_back(i);
    }
  }
  if (open.empty()) return values;
  std::vector<Branch> free;  // of steps' form, which the question has not
  for (Branch& branch : open) {
    if (branch.constraint()) free.push_back(branch.fork({.stream = branch.stream()}));
  }
  for (Branch& branch : free) branch.unconstrain();
  const std::vector<std::vector<Score>> scores =
      session.score(free.empty() ? open : free, {"?s", "?i"}, {.cancel = cancel});
  for (std::size_t i = 0; i < open.size(); ++i) {
    const double margin = scores[i][0].logprob - scores[i][1].logprob;  // NaN: not computed
    values[places[i]] = std::isnan(margin) ? 0.0 : 1.0 / (1.0 + std::exp(-margin));
    candidates[places[i]] = std::move(open[i]);
  }
  return values;
}

/// Lines that are drawn from each node, all in one batch, equal ones once.
Proposals sample_steps(Session& session, std::span<Branch> nodes, const Search& search,
                       const std::stop_token& cancel) {
  std::vector<Branch> drawn;
  for (Branch& node : nodes) {
    for (Branch& child : node.fork(search.samples)) drawn.push_back(std::move(child));
  }
  const std::vector<Generation> lines =
      session.decode(drawn, {.max_tokens = kTokensPerStep,
                             .stop = {"\n"},
                             .temperature = 1,
                             .cancel = cancel,
                             .speculate = search.speculate,
                             .speculate_budget = search.speculate_budget});
  Proposals proposals;
  proposals.children.resize(nodes.size());
  std::set<std::pair<std::size_t, std::string>> seen;
  for (std::size_t i = 0; i < drawn.size(); ++i) {
    const Finish finish = lines[i].finish;
    const std::size_t node = i / static_cast<std::size_t>(search.samples);
    // (A line that ends inside of what a constraint asks for goes on with the next step.)
    const bool whole = finish == Finish::kStop || finish == Finish::kStopInside;
    if (whole && seen.emplace(node, lines[i].text).second) {
      proposals.children[node].push_back(std::move(drawn[i]));
    }
    if (finish == Finish::kBudget || finish == Finish::kCancelled) proposals.finish = finish;
  }
  return proposals;
}

Steps steps(const Session& session, const Puzzle& puzzle, double min_prob, std::stop_token cancel) {
  const Token newline = session.engine().encode("\n", false).back();
  Steps steps;
  steps.propose = [newline, min_prob, cancel](Session& s, std::span<Branch> nodes) {
    return expand_until(s, nodes, newline, min_prob, kTokensPerStep, cancel);
  };
  steps.accept = [puzzle](const Branch& branch, const std::string&) {
    return state_after(puzzle, branch.text()).has_value();
  };
  steps.judgement.judge = [puzzle, cancel](Session& s, std::span<Branch> candidates) {
    return judge(s, candidates, puzzle, cancel);
  };
  return steps;
}

/// What all strategies have.
template <typename Strategy>
Strategy solving(const Puzzle& puzzle, std::stop_token cancel) {
  Strategy strategy;
  strategy.solved = [puzzle](const Branch& branch, const std::string&) {
    return is_solution(puzzle, branch);
  };
  strategy.cancel = std::move(cancel);
  return strategy;
}

template <typename Strategy>
Strategy stepwise(const Session& session, const Puzzle& puzzle, double min_prob,
                  std::stop_token cancel) {
  auto strategy = solving<Strategy>(puzzle, cancel);
  strategy.depth = steps_to_the_end(puzzle);
  strategy.steps = steps(session, puzzle, min_prob, std::move(cancel));
  return strategy;
}

/// One run of a strategy, told and recorded.
template <typename Strategy>
SearchResult run_one(Session& session, const Puzzle& puzzle, char mode, Strategy strategy,
                     const Search& search, const std::function<void(const SearchEvent&)>& on_event,
                     std::ostream* out) {
  const std::string text = prompt(puzzle, mode);
  std::optional<SearchTrace> trace;
  if (out != nullptr) {
    TraceHeader header = trace_header(session.engine(), describe(strategy), search.seed, text);
    header.with("solve.numbers", to_text(puzzle.numbers))
        .with("solve.target", std::to_string(puzzle.target))
        .with("solve.strategy", search.strategy)
        .with("solve.width", std::to_string(search.width))
        .with("solve.budget_tokens", std::to_string(search.budget_tokens));
    if (search.samples > 0) header.with("solve.samples", std::to_string(search.samples));
    if (search.constrain) header.with("solve.constrain", "1");
    trace.emplace(*out, header);
  }
  strategy.on_event = [&](const SearchEvent& event) {
    if (trace) trace->on(event);
    if (on_event) on_event(event);
  };
  SearchResult result = session.run_tree(
      strategy, text, search.constrain ? std::optional(form_of(puzzle, mode)) : std::nullopt);
  if (trace) trace->finish(result);
  return result;
}

template <typename Number>
Number number_of(const TraceHeader& header, const char* name) {
  const std::string& text = header.param(name);
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) {
    throw Error("trace: the parameter \"" + std::string(name) + "\" is \"" + text +
                "\"; expected a number");
  }
  return value;
}

}  // namespace

std::vector<std::string> steps_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  if (!lines.empty() && lines.back() == "ok") lines.pop_back();
  return lines;
}

std::string prompt(const Puzzle& puzzle, char mode) {
  std::string text(1, mode);
  text += ' ';
  text += std::to_string(puzzle.target);
  text += ": ";
  text += to_text(puzzle.numbers);
  text += '\n';
  return text;
}

Constraint form_of(const Puzzle& puzzle, char mode) {
  const std::string number = "[1-9][0-9]{0,2}";
  std::string form;
  for (int left = steps_to_the_end(puzzle); left >= 1; --left) {
    form += number + "[-+*/]" + number + "=" + number + " \\|( " + number + "){" +
            std::to_string(left) + "}\n";
  }
  return Constraint::regex(mode == 'S' ? form + "ok\n" : form);
}

Attempt greedy(Session& session, const Puzzle& puzzle, std::stop_token cancel) {
  Branch branch = session.prefill(prompt(puzzle, 'S'));
  const Generation out = session.decode(
      branch, {.max_tokens = answer_tokens(puzzle), .temperature = 0, .cancel = std::move(cancel)});
  const std::optional<State> state = state_after(puzzle, out.text);
  return {branch.id(), steps_of(out.text), state.has_value(), state == State{puzzle.target},
          out.finish};
}

TreeOfThoughts tree_strategy(const Session& session, const Puzzle& puzzle, int width,
                             std::stop_token cancel, double min_prob) {
  auto strategy = stepwise<TreeOfThoughts>(session, puzzle, min_prob, std::move(cancel));
  strategy.width = width;
  return strategy;
}

DepthFirst depth_first_strategy(const Session& session, const Puzzle& puzzle, int width,
                                std::stop_token cancel) {
  auto strategy = stepwise<DepthFirst>(session, puzzle, kMinProb, std::move(cancel));
  strategy.width = width;
  return strategy;
}

BestFirst best_first_strategy(const Session& session, const Puzzle& puzzle, int width,
                              std::stop_token cancel) {
  auto strategy = stepwise<BestFirst>(session, puzzle, kMinProb, std::move(cancel));
  strategy.batch = width;
  return strategy;
}

Mcts mcts_strategy(const Session& session, const Puzzle& puzzle, int width,
                   std::stop_token cancel) {
  auto strategy = stepwise<Mcts>(session, puzzle, kMinProb, std::move(cancel));
  strategy.rule = Mcts::Rule::kPuct;
  strategy.exploration = 0.5;  // the judge is sharp: values are near 0 or 1
  strategy.iterations = 400;
  strategy.batch = width;
  return strategy;
}

BeamSearch beam_strategy(const Puzzle& puzzle, int width, std::stop_token cancel) {
  auto strategy = solving<BeamSearch>(puzzle, std::move(cancel));
  strategy.width = width;
  strategy.max_tokens = static_cast<int>(answer_tokens(puzzle));
  return strategy;
}

BestOfN best_of_n_strategy(const Puzzle& puzzle, int samples, std::stop_token cancel) {
  auto strategy = solving<BestOfN>(puzzle, std::move(cancel));
  strategy.n = samples;
  strategy.sampling.max_tokens = answer_tokens(puzzle);
  strategy.first_success = true;
  return strategy;
}

const std::vector<std::string>& strategy_names() {
  static const std::vector<std::string> names = {"tot",    "depth-first", "best-first", "mcts",
                                                 "greedy", "beam",        "best-of-n"};
  return names;
}

SearchResult solve(Session& session, const Puzzle& puzzle, const Search& search,
                   const std::function<void(const SearchEvent&)>& on_event, std::ostream* trace,
                   std::stop_token cancel) {
  const auto run = [&](char mode, auto strategy) {
    return run_one(session, puzzle, mode, std::move(strategy), search, on_event, trace);
  };
  const auto run_stepwise = [&](auto strategy) {
    if (search.samples > 0) {
      strategy.steps.propose = [&search, cancel](Session& s, std::span<Branch> nodes) {
        return sample_steps(s, nodes, search, cancel);
      };
    }
    return run('P', std::move(strategy));
  };
  const std::string& name = search.strategy;
  const int width = search.width;
  if (name == "tot") return run_stepwise(tree_strategy(session, puzzle, width, cancel));
  if (name == "depth-first") {
    return run_stepwise(depth_first_strategy(session, puzzle, width, cancel));
  }
  if (name == "best-first") {
    return run_stepwise(best_first_strategy(session, puzzle, width, cancel));
  }
  if (name == "mcts") return run_stepwise(mcts_strategy(session, puzzle, width, cancel));
  if (name == "greedy") {
    BestOfN one = best_of_n_strategy(puzzle, 1, cancel);
    one.sampling.temperature = 0;
    return run('S', std::move(one));
  }
  if (name == "beam") return run('S', beam_strategy(puzzle, width, cancel));
  if (name == "best-of-n") return run('S', best_of_n_strategy(puzzle, width, cancel));
  throw Error("solve: the strategy is \"" + name + "\"; expected one of strategy_names()");
}

void solve_again(const Engine& engine, const TraceHeader& header, std::ostream& out) {
  Puzzle puzzle;
  puzzle.target = number_of<int>(header, "solve.target");
  std::istringstream numbers(header.param("solve.numbers"));
  for (int number = 0; numbers >> number;) puzzle.numbers.push_back(number);
  puzzle.numbers = check_numbers(puzzle.numbers, puzzle.target);
  Search search{header.param("solve.strategy"), number_of<int>(header, "solve.width"),
                number_of<std::int64_t>(header, "solve.budget_tokens"), header.seed};
  const auto has = [&](const char* name) {
    return std::ranges::count(header.params, name, &TraceParams::value_type::first) > 0;
  };
  if (has("solve.samples")) search.samples = number_of<int>(header, "solve.samples");
  search.constrain = has("solve.constrain");
  Session session(engine, {.seed = search.seed, .budget = {.tokens = search.budget_tokens}});
  solve(session, puzzle, search, {}, &out);
}

}  // namespace dendrite::game24
