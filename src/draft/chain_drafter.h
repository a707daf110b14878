#pragma once

#include <cstdint>
#include <span>

#include "draft/acceptance.h"
#include "draft/lattice.h"

namespace dendrite {

/// Drafts of a model that says one token after the other: a chain, and beside each of its tokens
/// those that the model thought of, too.
class ChainDrafter : public Acceptance {
 public:
  ChainDrafter();

  /// The chain's tokens come with the model's own log-probs. `greedy`: the text takes the likeliest
  /// token each time; else the model drew by the numbers that the text will be drawn by.
  Draft propose(std::span<const ChosenToken> chain, bool greedy, const DraftLimits& limits) const;

 private:
  class Chain;
  enum Found : std::int32_t { kGreedily, kDrawn, kBeside };
};

}  // namespace dendrite
