#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "dendrite/types.h"
#include "sample/mask.h"

namespace dendrite {

/// Sampling parameters with nothing left open.
struct SamplerSettings {
  double temperature = 0;
  std::int64_t top_k = 0;
  double top_p = 1;
  double min_p = 0;
  double repetition_penalty = 1;
  std::vector<std::pair<Token, float>> logit_bias{};

  bool operator==(const SamplerSettings&) const = default;
  bool changes_logits() const { return repetition_penalty != 1 || !logit_bias.empty(); }
};

/// Checks ranges; throws Error naming the parameter, what was got and what was expected.
void check(const SamplerSettings& settings, std::int64_t vocab);

/// Reusable memory of sample(); one a thread.
struct SamplerScratch {
  std::vector<float> logits;
  std::vector<std::uint8_t> seen;
  std::vector<std::pair<float, Token>> candidates;
  std::vector<double> weights;
};

/// Draws one token. Order: the mask (empty: none), what it rules out being as with logit -inf;
/// logit_bias, repetition_penalty (over `history`; Keskar et al. 2019,
/// arXiv:1909.05858), temperature, top_k, top_p (Holtzman et al. 2020, arXiv:1904.09751), min_p;
/// then inverse CDF of `uniform` in [0, 1) in vocabulary order. Temperature 0: the likeliest, ties
/// to the lowest id. -1 where nothing can be drawn: no token is allowed whose logit, with its bias,
/// is a number or infinity. A pure function of its arguments.
Token sample(std::span<const float> logits, std::span<const Token> history,
             const SamplerSettings& settings, Mask mask, double uniform, SamplerScratch& scratch);

}  // namespace dendrite
