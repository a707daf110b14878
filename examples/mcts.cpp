// Monte-Carlo tree search with rollouts: the model proposes steps, plays each to its end a few
// times, and the rules of the game say which ends are worth something. No judge is needed.
#include <dendrite/dendrite.h>

#include <cstdio>
#include <exception>

#include "puzzle.h"

int main(int argc, char** argv) try {
  using namespace dendrite;
  Engine engine = Engine::load(argc > 1 ? argv[1] : "models/dendrite-24");
  Session session(engine, {.seed = 3, .budget = {.tokens = 50'000}});
  const puzzle::Numbers numbers = {1, 5, 9, 13};

  Mcts strategy;
  strategy.rule = Mcts::Rule::kPuct;  // the model's probability of a step is its prior
  strategy.steps.candidates = 12;
  strategy.steps.accept = [&](const Branch& branch, const std::string&) {
    return puzzle::after_steps(numbers, branch.text()).has_value();
  };
  strategy.rollouts = 4;
  strategy.rollout = {.max_tokens = 40, .temperature = 1.0};
  // How near the last legal state of a rollout comes: in threads beside the engine.
  strategy.steps.judgement.evaluator_threads = 2;
  strategy.steps.judgement.evaluate = [&](const Candidate& rollout) {
    std::istringstream lines(rollout.history);
    std::string legal;
    double value = 0;
    for (std::string line; std::getline(lines, line); value += 0.25) {
      legal += line + "\n";
      if (!puzzle::after_steps(numbers, legal)) break;
    }
    return value;
  };
  strategy.solved = [&](const Branch& branch, const std::string&) {
    std::istringstream lines(branch.text());  // a rollout may go on after the solution
    std::string steps;
    for (std::string line; std::getline(lines, line);) {
      steps += line + "\n";
      if (puzzle::after_steps(numbers, steps) == puzzle::Numbers{24}) return true;
    }
    return false;
  };

  const SearchResult result = session.run_tree(strategy, "S 24: 1 5 9 13\n");
  std::printf("%s after %zu thoughts\n%s", result.solved ? "solved" : "not solved",
              result.tree.size(), result.branch.valid() ? result.branch.text().c_str() : "");
  return result.solved ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "mcts: %s\n", error.what());
  return 1;
}
