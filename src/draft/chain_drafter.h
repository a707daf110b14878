#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "draft/lattice.h"

namespace dendrite {

/// Drafts of a model that says one token after the other: a chain, and beside each of its tokens
/// those that the model thought of, too. It learns while it runs how often such tokens come: a
/// model is as sure of itself where it is wrong about another model's text as where it is right.
class ChainDrafter {
 public:
  ChainDrafter();

  /// The chain's tokens come with the model's own log-probs. `greedy`: the text takes the likeliest
  /// token each time; else the model drew by the numbers that the text will be drawn by.
  Draft propose(std::span<const ChosenToken> chain, bool greedy, const DraftLimits& limits) const;
  /// A draft was put to the test after one of its nodes (-1: before the first); what came was the
  /// node `came`, or none (-1).
  void learn(const Draft& draft, std::int32_t node, std::int32_t came);
  /// Of a chain of so many tokens, so many were taken before the text went another way; or `ended`.
  void learn_length(std::int64_t drafted, std::int64_t taken, bool ended);
  /// The chance that a chain's token is taken where those before it were; depth >= 1.
  double taken_at(std::int64_t depth) const;

 private:
  class Chain;
  enum class Found : std::uint8_t { kGreedily, kDrawn, kBeside };
  static constexpr int kFound = 3;
  /// Upper ends of probabilities that are one kind.
  static constexpr std::array kEnds = {0.1F, 0.25F, 0.5F, 0.7F, 0.85F, 0.95F, 1.0F};
  static constexpr std::int64_t kDepths = 32;

  /// How often something came, with forgetting.
  struct Rate {
    double came = 0;
    double tried = 0;
    double value() const;
    void learn(bool it_came);
  };

  static std::int32_t kind_of(Found found, float logprob);
  const Rate& rate_of(std::int32_t kind) const { return rates_[static_cast<std::size_t>(kind)]; }

  std::array<Rate, kFound * kEnds.size()> rates_;  // by kind
  std::array<Rate, kDepths> depths_{};             // from depth 1 on
};

}  // namespace dendrite
