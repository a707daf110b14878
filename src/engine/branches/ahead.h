#pragma once

#include <cstdint>
#include <deque>
#include <optional>

#include "dendrite/types.h"
#include "grammar/matcher.h"
#include "sample/sampler.h"

namespace dendrite {

struct BranchState;

/// Tokens drawn for a branch ahead of the decode call that is expected to want them. They follow
/// the branch at a place in the tree of their own, so the branch does not change by them: a decode
/// call that would draw the same takes them over one by one, anything else that makes the branch
/// grow drops them. They run in pages that nobody wants, and are the first to lose them.
struct Ahead {
  struct Drawn {
    ChosenToken chosen;
    std::int64_t rows = 0;  // that were computed for it
    bool forced = false;    // the only one that its constraint allowed
  };

  /// The branch with all of them: in the session's slab, where eviction and checks find it, with
  /// the branch's id and stream, and without a handle.
  BranchState* state = nullptr;
  std::deque<Drawn> tokens{};  // not taken over yet
  SamplerSettings settings{};  // by which they were drawn
  int top_logprobs = 0;
  std::optional<Constraint> constraint{};  // of the call; the state has the branch's own
  Matcher matcher{};                       // of it, after all tokens
  bool taken_from = false;  // by a call; what counts from the beginning of another, its constraint
                            // or min_tokens, would begin where that ended

  /// Whether a call with these settings would draw the same, and anything was drawn at all.
  bool fits(const SamplerSettings& wanted, int wanted_top,
            const std::optional<Constraint>& wanted_constraint) const {
    return !tokens.empty() && settings == wanted && constraint == wanted_constraint &&
           !((constraint || settings.min_tokens > 0) && taken_from) &&
           (wanted_top <= 0 || wanted_top == top_logprobs);
  }
};

}  // namespace dendrite
