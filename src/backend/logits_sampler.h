#pragma once

#include <cstdint>
#include <span>

#include "backend/tensor.h"

namespace dendrite {

/// One draw from a row of raw logits [vocab], with the meaning of sample() in sample/sampler.h.
struct Draw {
  std::int32_t row = 0;
  double temperature = 0;  // 0: the likeliest, ties to the lowest id
  std::int64_t top_k = 0;  // 0: all
  double top_p = 1;
  double min_p = 0;
  double uniform = 0;  // in [0, 1)

  std::int32_t token = -1;  // out
  float logprob = 0;        // out: of `token` under the raw logits
};

/// A token whose log-prob under a row of logits is wanted.
struct TokenQuery {
  std::int32_t row = 0;
  std::int32_t token = 0;
};

/// Draws and log-probs where the logits are, on devices from which bringing them to the host costs
/// too much. Each result is a pure function of its row and its own arguments: never of company.
/// Throws Error when a row or token is out of range.
class LogitsSampler {
 public:
  virtual ~LogitsSampler() = default;

  /// Fills `token` and `logprob` of every draw. logits [rows, vocab]. Requires that none are begun.
  void draw(Tensor logits, std::span<Draw> draws) {
    begin_draw(logits, draws);
    finish_draw(draws);
  }

  /// The same in two parts: enqueues the draws, and waits for the first ones that were begun and
  /// not finished. At most two may be begun at a time: a pass in between can take the tokens of
  /// the first kept_draws() of the last ones from the device, see PassInputs::token_of_draw.
  virtual void begin_draw(Tensor logits, std::span<const Draw> draws) = 0;
  virtual void finish_draw(std::span<Draw> draws) = 0;
  /// Nobody will ask for what was begun.
  virtual void forget_draws() = 0;
  virtual std::int32_t kept_draws() const = 0;

  /// out[i] = logits[row][token] - log(sum(exp(logits[row]))) of queries[i]. Waits for them.
  virtual void log_probs(Tensor logits, std::span<const TokenQuery> queries,
                         std::span<float> out) = 0;
};

}  // namespace dendrite
