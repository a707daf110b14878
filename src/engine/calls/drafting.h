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
  /// Before the step's draws: what is drawn behind those rows.
  void prepare_draws();
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
    std::int64_t begin = 0;               // position of the first
    std::span<const std::int32_t> nodes;  // in order
    // After each of them:
    std::span<Draw> draws;        // where the device samples, one for each lane of the draft
    std::span<DraftDraw> masked;  // ... under a constraint
    std::span<std::shared_ptr<const LogitsRow>> rows;  // else

    /// Whether the step computed the row of its token `i`.
    bool has_row(std::size_t i) const {
      return draws.empty() ? rows[i] != nullptr : draws[i * draws.size() / nodes.size()].token >= 0;
    }
  };
  struct Drafted : LaneDraft {
    std::vector<Drafted*> lanes;  // whose draft it is; of its owner alone
    std::size_t place = 0;        // among those
    // Of the draft's owner alone: its chains, and what these are parts of, one after the other.
    std::vector<Chain> chains;
    std::vector<std::int32_t> chain_nodes;
    std::vector<Token> chain_tokens;
    std::vector<Draw> draws;
    std::vector<DraftDraw> masked;
    std::vector<LaneSampler::OwnEdits> edits;  // of the draws' logits
    std::vector<std::shared_ptr<const LogitsRow>> rows;

    Drafted& owner() {
      return shared_with == nullptr ? *this : static_cast<Drafted&>(*shared_with);
    }
    const Drafted& owner() const {
      return shared_with == nullptr ? *this : static_cast<const Drafted&>(*shared_with);
    }
  };
  /// Of a draft's nodes that are picked, in their order: what is drafted after each. -1: nothing.
  struct Children {
    explicit Children(const LaneDraft& draft);
    std::int32_t first(std::int32_t node) const {
      return firsts[static_cast<std::size_t>(node + 1)];
    }
    std::int32_t after(std::int32_t node) const { return nexts[static_cast<std::size_t>(node)]; }

    std::vector<std::int32_t> firsts;  // of the text, then of each node
    std::vector<std::int32_t> nexts;   // the next one with the same parent
  };

  bool can_draft() const;
  void ask_for(Drafted& of, std::vector<Wish>& wishes);
  static std::vector<Token> path_to(const Drafted& of, std::int32_t node);
  void ask_for_draws(Drafted& of, Chain& chain, std::size_t before, Wish& wish) const;
  void grow(Drafted& of) DENDRITE_REQUIRES(kTreeLock);
  void grow(Drafted& of, const Children& children, std::int32_t node, Tip& from)
      DENDRITE_REQUIRES(kTreeLock);
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
