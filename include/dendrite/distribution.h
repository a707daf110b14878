#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "dendrite/types.h"

namespace dendrite {

struct LogitsRow;

/// What the next token of a branch is drawn from, before bias, penalties, temperature and filters.
/// A shared handle on what the tree itself keeps and never changes: no logit is copied, and it may
/// outlive the branch, the session and the engine. Copies are cheap; any threads may read it.
class Distribution {
 public:
  Distribution() = default;  ///< empty; valid() is false
  bool valid() const { return row_ != nullptr; }

  /// One raw logit a token, as long as this handle lives. Empty where it is not valid.
  std::span<const float> logits() const;
  /// Natural log, softmax over the whole vocabulary: to the bit what decode and score tell. Throws
  /// Error where it is not valid, or for an id outside the vocabulary.
  float logprob(Token token) const;
  /// The n likeliest tokens, likeliest first (ties: lowest id): to the bit those of
  /// ChosenToken::top. Throws Error where it is not valid, or for n < 0.
  std::vector<TokenLogprob> top(int n) const;

 private:
  friend class DistributionCall;
  Distribution(std::shared_ptr<const LogitsRow> row, double lse)
      : row_(std::move(row)), lse_(lse) {}

  std::shared_ptr<const LogitsRow> row_;
  double lse_ = 0;  // log(sum(exp(logits)))
};

}  // namespace dendrite
