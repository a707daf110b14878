#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "core/logit_change.h"
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
  double presence_penalty = 0;
  double frequency_penalty = 0;
  std::vector<std::pair<Token, float>> logit_bias{};
  std::vector<std::vector<Token>> bad_words{};  // none is empty
  std::int64_t min_tokens = 0;
  std::vector<Token> no_ends{};  // where min_tokens > 0: not drawn before that; and ...
  bool no_eos = false;           // ... the model's end-of-sequence tokens
  std::optional<std::uint64_t> seed{};

  bool operator==(const SamplerSettings&) const = default;
  /// Whether what may be drawn depends on the tokens before, beside their distribution.
  bool looks_at_text() const {
    return repetition_penalty != 1 || presence_penalty != 0 || frequency_penalty != 0 ||
           !bad_words.empty();
  }
  bool changes_logits() const { return looks_at_text() || !logit_bias.empty() || min_tokens > 0; }
};

/// Checks ranges; throws Error naming the parameter, what was got and what was expected.
void check(const SamplerSettings& settings, std::int64_t vocab);

/// Reusable memory of sample(); one a thread.
struct SamplerScratch {
  std::vector<float> logits;
  std::vector<std::pair<float, Token>> candidates;
  std::vector<double> weights;
};

/// Draws one token. Order: the mask (empty: none), what it rules out being as with logit -inf; the
/// edits, which are what settings change about logits (LogitChanges: logit_bias,
/// repetition_penalty, Keskar et al. 2019, arXiv:1909.05858, and so on); temperature, top_k, top_p
/// (Holtzman et al. 2020, arXiv:1904.09751), min_p; then inverse CDF of `uniform` in [0, 1) in
/// vocabulary order. Temperature 0: the likeliest, ties to the lowest id. -1 where nothing can be
/// drawn: no token is allowed whose logit, once it is edited, is a number or infinity. A pure
/// function of its arguments.
Token sample(std::span<const float> logits, const LogitEdits& edits,
             const SamplerSettings& settings, Mask mask, double uniform, SamplerScratch& scratch);

}  // namespace dendrite
