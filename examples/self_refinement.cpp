// Self-refinement: draft, criticise, rewind to the first weak step, try again (Madaan et al. 2023,
// arXiv:2303.17651). The critic is the same model on the same pages, and a rewind costs nothing: it
// is a fork from the past, so what came before the weak step is never computed again.
#include <dendrite/dendrite.h>

#include <cstdio>
#include <exception>

#include "puzzle.h"

namespace {
using namespace dendrite;

/// Where each step begins, and whether the critic believes in the state after it.
struct Critique {
  std::int64_t weak_from = 0;  // tokens before the first weak step; 0: none is weak
  std::string weak_step;
};

/// Writes steps until one number is left: three, for four numbers. `ends` gets the length after
/// each.
void draft(Session& session, Branch& branch, std::vector<std::int64_t>& ends, double temperature) {
  while (ends.size() < 4) {
    session.decode(branch, {.max_tokens = 32, .stop = {"\n"}, .temperature = temperature});
    ends.push_back(branch.length());
  }
}

/// The first step that is illegal, or after which the model itself thinks the target out of reach.
Critique criticise(Branch& branch, const std::vector<std::int64_t>& ends,
                   const puzzle::Numbers& numbers) {
  for (std::size_t step = 1; step < ends.size(); ++step) {
    Branch prefix = branch.at(ends[step]);
    const std::optional<puzzle::Numbers> left = puzzle::after_steps(numbers, prefix.text());
    bool good = left.has_value();
    if (good && left->size() == 1) {
      good = *left == puzzle::Numbers{24};
    } else if (good) {
      const std::vector<Score> labels = prefix.score({"?s", "?i"});  // "?sure" or "?impossible"
      good = labels[0].logprob > labels[1].logprob;
    }
    if (!good)
      return {ends[step - 1], prefix.text().substr(branch.at(ends[step - 1]).text().size())};
  }
  return {};
}

}  // namespace

int main(int argc, char** argv) try {
  Engine engine = Engine::load(argc > 1 ? argv[1] : "models/dendrite-24");
  Session session(engine, {.seed = 3});
  Branch branch = session.prefill("P 24: 3 5 9 13\n");
  std::vector<std::int64_t> ends = {branch.length()};
  draft(session, branch, ends, /*temperature=*/0);

  for (int round = 0; round < 64; ++round) {
    std::printf("draft %d\n%s", round, branch.text().c_str());
    const Critique critique = criticise(branch, ends, {3, 5, 9, 13});
    if (critique.weak_from == 0) {
      std::printf("solved: every step is legal and the last leaves 24\n");
      return 0;
    }
    std::printf("  weak: %s", critique.weak_step.c_str());
    // The critic may err, too: every fourth time all steps are taken back.
    const std::int64_t keep = round % 4 == 3 ? ends.front() : critique.weak_from;
    branch = branch.at(keep);  // the weak tail's pages go back to the pool
    while (ends.back() > keep) ends.pop_back();
    draft(session, branch, ends, /*temperature=*/1);
  }
  std::printf("no solution within 64 drafts\n");
  return 1;
} catch (const std::exception& error) {
  std::fprintf(stderr, "self_refinement: %s\n", error.what());
  return 1;
}
