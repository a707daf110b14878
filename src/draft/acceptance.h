#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "draft/lattice.h"

namespace dendrite {

/// How often something came, with forgetting.
struct AcceptanceRate {
  double came = 0;
  double tried = 0;

  double value() const;
  void learn(bool it_came);
  /// Believed before anything was seen; it counts as a few tests.
  static AcceptanceRate believed(double chance);
};

/// Learns, while it runs, how often drafted tokens come: a model is as sure of itself where it is
/// wrong about another model's text as where it is right. DraftNode::kind is a class, which the
/// drafter chooses, and a range of the probability that the model gave.
class Acceptance {
 public:
  /// `beliefs`: of each class, the chance before anything was seen; < 0: what the model says.
  explicit Acceptance(const std::vector<double>& beliefs);

  /// A draft was put to the test after one of its nodes (-1: before the first); what came was the
  /// node `came`, or none (-1).
  void learn(const Draft& draft, std::int32_t node, std::int32_t came);
  /// Of a draft that was so many tokens deep, so many were taken before the text went another way;
  /// or `ended`.
  void learn_length(std::int64_t drafted, std::int64_t taken, bool ended);
  /// The chance that the token at this depth is taken where those before it were; depth >= 1.
  double taken_at(std::int64_t depth) const;

 protected:
  static std::int32_t kind_of(std::int32_t of_class, float logprob);
  /// log of the chance that a token of this kind comes.
  float logw(std::int32_t kind) const;

 private:
  /// Upper ends of probabilities that are one kind.
  static constexpr std::array kEnds = {0.1F, 0.25F, 0.5F, 0.7F, 0.85F, 0.95F, 1.0F};
  static constexpr std::int64_t kDepths = 32;

  std::vector<AcceptanceRate> rates_;             // by kind
  std::array<AcceptanceRate, kDepths> depths_{};  // from depth 1 on
};

}  // namespace dendrite
