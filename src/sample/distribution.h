#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dendrite/types.h"
#include "sample/mask.h"

namespace dendrite {

/// Facts about one row of raw logits [vocab]. Sums run over fixed lanes, so the bits depend on the
/// row alone.

/// Index of the largest logit; ties: the lowest id. NaN never wins.
Token argmax(std::span<const float> logits);
/// Of what the mask allows; -1: nothing.
Token argmax(std::span<const float> logits, Mask mask);

/// log(sum(exp(logits))), within 1e-6 relative of double precision.
double log_sum_exp(std::span<const float> logits);

/// The n likeliest tokens, likeliest first (ties: lowest id), with log-probs under `lse`. With a
/// mask, of what it allows, the log-probs being the same.
std::vector<TokenLogprob> top_logprobs(std::span<const float> logits, double lse, std::size_t n,
                                       Mask mask = {});

}  // namespace dendrite
