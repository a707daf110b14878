#include "game24_search.h"

#include <cmath>
#include <sstream>

namespace dendrite::game24 {
namespace {

// An S answer takes about 15 tokens a step and a closing "ok".
constexpr std::int64_t kTokensPerStep = 32;

std::vector<std::string> lines_of(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream stream(text);
  for (std::string line; std::getline(stream, line);) lines.push_back(line);
  return lines;
}

/// The state after all lines of a branch, nullopt when one of them is not legal.
std::optional<State> state_after(const Puzzle& puzzle, const std::vector<std::string>& lines) {
  State state = puzzle.numbers;
  for (const std::string& line : lines) {
    const std::optional<State> next = next_state(state, line);
    if (!next) return std::nullopt;
    state = *next;
  }
  return state;
}

Attempt check(const Puzzle& puzzle, const Branch& branch, const Generation& generation) {
  Attempt attempt;
  attempt.branch = branch.id();
  attempt.finish = generation.finish;
  attempt.steps = lines_of(generation.text);
  if (!attempt.steps.empty() && attempt.steps.back() == "ok") attempt.steps.pop_back();
  const std::optional<State> state = state_after(puzzle, attempt.steps);
  attempt.legal = state.has_value();
  attempt.solved = state == State{puzzle.target};
  return attempt;
}

std::vector<double> judge(Session& session, std::span<Branch> candidates, const Puzzle& puzzle,
                          std::stop_token cancel) {
  std::vector<double> values;
  const std::size_t last_lines = puzzle.numbers.size() - 1;
  const bool last = !candidates.empty() && lines_of(candidates[0].text()).size() == last_lines;
  if (last) {
    for (const Branch& branch : candidates) {
      values.push_back(state_after(puzzle, lines_of(branch.text())) == State{puzzle.target});
    }
    return values;
  }
  // One token of each label tells them apart: both continuations share "?", computed once a branch.
  for (const std::vector<Score>& scores : session.score(candidates, {"?s", "?i"}, cancel)) {
    const double margin = scores[0].logprob - scores[1].logprob;  // NaN: could not be computed
    values.push_back(std::isnan(margin) ? 0.0 : 1.0 / (1.0 + std::exp(-margin)));
  }
  return values;
}

}  // namespace

std::string prompt(const Puzzle& puzzle, char mode) {
  std::string text(1, mode);
  text += ' ';
  text += std::to_string(puzzle.target);
  text += ": ";
  text += to_text(puzzle.numbers);
  text += '\n';
  return text;
}

TreeOfThoughts tree_strategy(const Session& session, const Puzzle& puzzle, int width,
                             std::stop_token cancel, double min_prob) {
  const Token newline = session.engine().encode("\n", false).back();
  TreeOfThoughts strategy;
  strategy.depth = static_cast<int>(puzzle.numbers.size()) - 1;
  strategy.width = width;
  strategy.steps.propose = [newline, min_prob, cancel](Session& s, std::span<Branch> nodes) {
    return expand_until(s, nodes, newline, min_prob, kTokensPerStep, cancel);
  };
  strategy.cancel = cancel;
  strategy.steps.judgement.judge = [puzzle, cancel](Session& s, std::span<Branch> candidates) {
    return judge(s, candidates, puzzle, cancel);
  };
  strategy.steps.accept = [puzzle](const Branch& branch, const std::string&) {
    return state_after(puzzle, lines_of(branch.text())).has_value();
  };
  strategy.solved = [puzzle](const Branch& branch, const std::string&) {
    return state_after(puzzle, lines_of(branch.text())) == State{puzzle.target};
  };
  return strategy;
}

Attempt greedy(Session& session, const Puzzle& puzzle, std::stop_token cancel) {
  Branch branch = session.prefill(prompt(puzzle, 'S'));
  const Generation out = session.decode(
      branch, {.max_tokens = kTokensPerStep * static_cast<std::int64_t>(puzzle.numbers.size()),
               .temperature = 0,
               .cancel = std::move(cancel)});
  return check(puzzle, branch, out);
}

std::vector<Attempt> best_of_n(Session& session, const Puzzle& puzzle, int samples,
                               std::stop_token cancel) {
  Branch root = session.prefill(prompt(puzzle, 'S'));
  std::vector<Branch> branches = root.fork(samples);
  const std::vector<Generation> out = session.decode(
      branches, {.max_tokens = kTokensPerStep * static_cast<std::int64_t>(puzzle.numbers.size()),
                 .temperature = 1,
                 .cancel = std::move(cancel)});
  std::vector<Attempt> attempts;
  for (std::size_t i = 0; i < out.size(); ++i) {
    attempts.push_back(check(puzzle, branches[i], out[i]));
  }
  return attempts;
}

}  // namespace dendrite::game24
