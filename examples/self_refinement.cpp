// Self-refinement: draft a solution, criticise it, rewind to the first weak step and try again. The
// critic is the rules of the game and the same model on a branch of its own. A rewind costs
// nothing: it is a fork from the past, so what came before the weak step is never computed again.
#include <dendrite/dendrite.h>

#include <cstdio>
#include <exception>
#include <sstream>

#include "puzzle.h"

namespace {
using namespace dendrite;

/// The tokens of a draft up to the end of its first `lines` lines.
std::int64_t length_of(const Engine& engine, const Branch& draft, int lines) {
  const std::vector<Token> tokens = draft.tokens();
  std::int64_t length = draft.prompt_length();
  while (lines > 0 && length < draft.length()) {
    const Token token[] = {tokens[static_cast<std::size_t>(length++)]};
    if (engine.decode(token) == "\n") --lines;
  }
  return length;
}

/// Good until the first step that is illegal or after which the model thinks 24 out of reach.
Critique criticise(const Engine& engine, Branch& judge, const puzzle::Numbers& numbers,
                   const Branch& draft) {
  std::istringstream lines(draft.text());
  std::string steps;
  int good = 0;
  for (std::string line; std::getline(lines, line) && good < 3; ++good) {
    steps += line + "\n";
    const std::optional<puzzle::Numbers> left = puzzle::after_steps(numbers, steps);
    if (!left) break;
    if (*left == puzzle::Numbers{24}) return {.value = 3, .good = true};
    if (left->size() == 1) break;
    Branch state = judge.fork();
    state.append(steps);
    const std::vector<Score> labels = state.score({"?s", "?i"});  // "?sure" or "?impossible"
    if (labels[0].logprob < labels[1].logprob) break;
  }
  return {.value = static_cast<double>(good), .keep = length_of(engine, draft, good)};
}

}  // namespace

int main(int argc, char** argv) try {
  Engine engine = Engine::load(argc > 1 ? argv[1] : "models/dendrite-24");
  Session session(engine, {.seed = 3});
  Branch judge = session.prefill("P 24: 1 5 9 13\n");

  SelfRefinement strategy;
  strategy.rounds = 40;
  strategy.draft = {.max_tokens = 100, .temperature = 0};
  strategy.revision = DecodeParams{.max_tokens = 100, .temperature = 1};
  strategy.criticise = [&](Session&, std::span<Branch> drafts) {
    std::vector<Critique> critiques;
    for (const Branch& draft : drafts) {
      std::printf("draft\n%s", draft.text().c_str());
      critiques.push_back(criticise(engine, judge, {1, 5, 9, 13}, draft));
      std::printf("  %d steps are good\n", static_cast<int>(critiques.back().value));
    }
    return critiques;
  };
  const SearchResult result = session.run_tree(strategy, "S 24: 1 5 9 13\n");
  std::printf(result.solved ? "solved: every step is legal and the last leaves 24\n"
                            : "no solution within 40 revisions\n");
  return result.solved ? 0 : 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "self_refinement: %s\n", error.what());
  return 1;
}
