#pragma once

#include <cstdint>
#include <span>

namespace dendrite {

/// What is done to a token's logit before it may be drawn. Hosts and devices do it in f32, each
/// operation rounded by itself, so that all of them draw alike.
struct LogitChange {
  std::int32_t token = 0;
  float bias = 0;        // added; then ...
  float repetition = 1;  // ... what is negative is multiplied by it, the rest divided; ...
  float minus = 0;       // ... and this taken away

  float of(float logit) const {
    const float biased = logit + bias;
    const float scaled = biased < 0 ? biased * repetition : biased / repetition;
    return scaled - minus;
  }
};

/// What is changed about a row of logits: a few tokens of it.
struct LogitEdits {
  std::span<const LogitChange> changes{};  // each token once
  std::span<const std::int32_t> bans{};    // not drawn, whatever their logits

  bool empty() const { return changes.empty() && bans.empty(); }
};

}  // namespace dendrite
