#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "draft/acceptance.h"
#include "draft/lattice.h"

namespace dendrite {

/// Drafts of a model that says for each of the next places which tokens are likely there, each
/// place by itself (DFlash, arXiv 2602.06036): a tree of the likeliest (DDTree, arXiv 2604.12989).
/// What the model says of a place is right less often where the text has gone beside what was
/// likeliest before, and more often where it has not; how much is learnt.
class BlockDrafter : public Acceptance {
 public:
  BlockDrafter();

  /// For each place the likeliest tokens, likeliest first, with their log-probs.
  using Places = std::span<const std::vector<TokenLogprob>>;
  Draft propose(Places places, const DraftLimits& limits) const;

 private:
  class Block;
};

}  // namespace dendrite
