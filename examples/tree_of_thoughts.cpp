// Tree-of-Thoughts on the shipped model: it proposes steps, judges them itself, and the rules of
// the game say what is legal. The engine's part is in run_tree; what belongs to the problem is in
// four callables.
#include <dendrite/dendrite.h>

#include <cmath>
#include <cstdio>
#include <exception>

#include "puzzle.h"

int main(int argc, char** argv) try {
  using namespace dendrite;
  Engine engine = Engine::load(argc > 1 ? argv[1] : "models/dendrite-24");
  Session session(engine, {.seed = 1, .budget = {.tokens = 20'000}});
  const puzzle::Numbers numbers = {4, 5, 6, 10};

  TreeOfThoughts strategy;
  strategy.depth = 3;  // four numbers take three steps
  strategy.width = 5;
  strategy.steps.candidates = 16;  // samples a node, each up to a newline
  strategy.steps.accept = [&](const Branch& branch, const std::string&) {
    return puzzle::after_steps(numbers, branch.text()).has_value();
  };
  // The model was taught to answer "?" with "sure" or "impossible": all candidates in one batch.
  strategy.steps.judgement.judge = [](Session& s, std::span<Branch> candidates) {
    std::vector<double> values;
    for (const std::vector<Score>& labels : s.score(candidates, {"?s", "?i"})) {
      values.push_back(1 / (1 + std::exp(labels[1].logprob - labels[0].logprob)));
    }
    return values;
  };
  strategy.solved = [&](const Branch& branch, const std::string&) {
    return puzzle::after_steps(numbers, branch.text()) == puzzle::Numbers{24};
  };
  strategy.on_event = [](const SearchEvent& event) {
    if (event.kind != SearchEvent::Kind::kKept) return;
    std::printf("%*s%-22s judge %.3f\n", 2 * event.thought->depth, "", event.thought->text.c_str(),
                event.thought->value);
  };

  const SearchResult result = session.run_tree(strategy, "P 24: 4 5 6 10\n");
  std::printf("%s (%s)\n", result.solved ? "solved:" : "not solved", name_of(result.finish));
  for (const ThoughtRecord& step : result.path) std::printf("  %s\n", step.text.c_str());
  return result.solved ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "tree_of_thoughts: %s\n", error.what());
  return 1;
}
