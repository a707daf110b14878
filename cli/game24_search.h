#pragma once

#include <stop_token>
#include <string>
#include <vector>

#include "dendrite/dendrite.h"
#include "game24.h"

namespace dendrite::game24 {

/// A chain of steps that one branch generated, and what the rules say of it.
struct Attempt {
  BranchId branch = BranchId::kNone;
  std::vector<std::string> steps;  // as generated
  bool legal = false;              // every step follows from the one before
  bool solved = false;             // ... and the last leaves the target alone
  Finish finish = Finish::kRunning;
};

struct Puzzle {
  State numbers;
  int target = 24;
};

/// The model's prompt for a mode: 'S' solves, 'P' proposes (and judges).
std::string prompt(const Puzzle& puzzle, char mode);

/// Tree-of-Thoughts over the model's own proposals and judgements: children of a node are all lines
/// that the model gives at least `min_prob`; illegal ones are dropped; the judge is the model's
/// probability of "sure" against "impossible" after "?"; at the last depth it is the target itself.
TreeOfThoughts tree_strategy(const Session& session, const Puzzle& puzzle, int width,
                             std::stop_token cancel = {}, double min_prob = 0.003);

/// One greedy solution in mode S, checked.
Attempt greedy(Session& session, const Puzzle& puzzle, std::stop_token cancel = {});

/// `samples` solutions in mode S at temperature 1, all in one batch, each checked.
std::vector<Attempt> best_of_n(Session& session, const Puzzle& puzzle, int samples,
                               std::stop_token cancel = {});

}  // namespace dendrite::game24
