#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "engine/branches/call_tips.h"
#include "engine/branches/draft_provider.h"
#include "engine/calls/call.h"
#include "engine/calls/lane_grammar.h"
#include "engine/calls/lane_sampler.h"

namespace dendrite {

/// Speculation of one decode call. Before a step, tokens that may come next are drafted: forks of
/// each lane's branch, whose rows are in the same step as the lane's own. After it the lane draws
/// as it always does, and where the token is one that was drafted, the fork becomes the branch: its
/// row is there, and the lane draws from it at once. The other forks are dropped. What is drafted
/// decides how many rows a step has, and no token.
class Drafting {
 public:
  Drafting(SessionCore& session, const DecodeParams& params,
           const LaneSampler& sampler) DENDRITE_COMPUTES;

  /// Nothing is to be drafted in this step.
  bool rests() DENDRITE_REQUIRES(kComputeLock);
  /// The lane asks for a row in this step, and may still get `most` tokens.
  void want(Lane& lane, std::int64_t most);
  /// Adds the drafts that its provider is to fill.
  void collect(std::vector<DraftWish>& wishes);
  /// Wishes for the rows of what was proposed.
  void ask(std::vector<Wish>& wishes) DENDRITE_COMPUTES;
  /// The lane has its token, drawn or forced. True: it was drafted, and the lane's `logits` or
  /// `draw` are those after it.
  bool follow(Lane& lane) DENDRITE_COMPUTES;
  /// After the step: what was not taken goes.
  void drop() DENDRITE_COMPUTES;
  /// The branch has ended: what it said may help others.
  void remember(BranchState& branch) DENDRITE_COMPUTES { provider_.remember(branch); }
  /// How many times longer the drafts may make the step: as many as it is likely to give tokens
  /// more.
  double slack() const;

 private:
  /// Tokens of which each is the only one drafted after the one before: one fork has them.
  struct Chain {
    Tip* tip = nullptr;
    std::int64_t begin = 0;           // position of the first
    std::vector<std::int32_t> nodes;  // in order
    // After each of them:
    std::vector<Draw> draws;        // where the device samples, one for each lane of the draft
    std::vector<DraftDraw> masked;  // ... under a constraint
    std::deque<LaneSampler::OwnEdits> edits;  // ... of their logits; their addresses stay
    std::vector<std::shared_ptr<const LogitsRow>> rows;  // else

    /// Whether the step computed the row of its token `i`.
    bool has_row(std::size_t i) const {
      return draws.empty() ? rows[i] != nullptr : draws[i * draws.size() / nodes.size()].token >= 0;
    }
  };
  struct Drafted : LaneDraft {
    std::deque<Chain> chains;     // their addresses stay; of the draft's owner alone
    std::vector<Drafted*> lanes;  // whose draft it is; of its owner alone
    std::size_t place = 0;        // among those

    Drafted& owner() {
      return shared_with == nullptr ? *this : static_cast<Drafted&>(*shared_with);
    }
    const Drafted& owner() const {
      return shared_with == nullptr ? *this : static_cast<const Drafted&>(*shared_with);
    }
  };

  bool can_draft() const;
  void ask_for(Drafted& of, std::vector<Wish>& wishes) DENDRITE_COMPUTES;
  static std::vector<Token> path_to(const Drafted& of, std::int32_t node);
  void ask_for_draws(Drafted& of, Chain& chain, Wish& wish);
  void grow(Drafted& of, std::int32_t node, Tip& from) DENDRITE_REQUIRES(kTreeLock);
  bool take(Drafted& of, const Chain& chain, std::size_t i) DENDRITE_COMPUTES;
  bool may_spend() const DENDRITE_REQUIRES(kTreeLock);
  SpeculationStats count() const;
  void count_rows(const Drafted& owner, SpeculationStats& to) const;
  static void count_walk(const Drafted& of, SpeculationStats& to);
  void tell(const Drafted& of) const DENDRITE_REQUIRES(kTreeLock);

  SessionCore& session_;
  EngineCore& engine_;
  const DecodeParams& params_;  // the call's
  const LaneSampler& sampler_;
  DraftProvider& provider_;
  std::deque<Drafted> drafts_;  // of this step; their addresses stay
  CallTips tips_;               // of their chains
  std::int64_t lanes_ = 0;      // that asked in this step
  double hoped_ = 0;            // tokens that their drafts are likely to give
};

}  // namespace dendrite
