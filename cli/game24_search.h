#pragma once

#include <iosfwd>
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

/// What all that follows that prompt is written like, its numbers aside: for each step a line with
/// as many numbers left as there are then, and in mode S "ok".
Constraint form_of(const Puzzle& puzzle, char mode);

/// The steps that a text holds, without the "ok" that closes a solution in mode S.
std::vector<std::string> steps_of(const std::string& text);

/// One greedy solution in mode S, checked.
Attempt greedy(Session& session, const Puzzle& puzzle, std::stop_token cancel = {});

// Searches over the model's own proposals and judgements in mode P: children of a node are all
// lines that the model gives at least `min_prob`; illegal ones are dropped; the judge is the
// model's probability of "sure" against "impossible" after "?"; at the last depth it is the target
// itself.
inline constexpr double kMinProb = 0.003;
TreeOfThoughts tree_strategy(const Session& session, const Puzzle& puzzle, int width,
                             std::stop_token cancel = {}, double min_prob = kMinProb);
DepthFirst depth_first_strategy(const Session& session, const Puzzle& puzzle, int width,
                                std::stop_token cancel = {});
BestFirst best_first_strategy(const Session& session, const Puzzle& puzzle, int width,
                              std::stop_token cancel = {});
Mcts mcts_strategy(const Session& session, const Puzzle& puzzle, int width,
                   std::stop_token cancel = {});

// Whole solutions in mode S, checked by the rules: the likeliest ones, and samples at temperature 1
// up to the first that is right.
BeamSearch beam_strategy(const Puzzle& puzzle, int width, std::stop_token cancel = {});
BestOfN best_of_n_strategy(const Puzzle& puzzle, int samples, std::stop_token cancel = {});

/// A search by name, as the command line and a trace's header have it.
struct Search {
  std::string strategy = "tot";
  int width = 5;
  std::int64_t budget_tokens = 0;  // of the session; 0: no limit
  std::uint64_t seed = 0;          // of the session
  /// Of the strategies that go step by step: draws from each node at temperature 1, equal ones
  /// once; 0: all lines that are likely (kMinProb).
  int samples = 0;
  bool constrain = false;  // to form_of the puzzle
  // Of those draws. It changes no result, so no trace has it.
  Speculate speculate = Speculate::kOff;
  std::int64_t speculate_budget = 16;
};

/// What Search::strategy may be.
const std::vector<std::string>& strategy_names();

/// Runs a search in a session of its seed and budget. `on_event` may be empty; `trace`, where there
/// is one, gets the search as JSON lines with all that solve_again needs.
SearchResult solve(Session& session, const Puzzle& puzzle, const Search& search,
                   const std::function<void(const SearchEvent&)>& on_event = {},
                   std::ostream* trace = nullptr, std::stop_token cancel = {});

/// The search that the header of a trace names, once more, recorded in `out`: for replay(). Throws
/// Error when the trace is not one of `solve`.
void solve_again(const Engine& engine, const TraceHeader& header, std::ostream& out);

}  // namespace dendrite::game24
