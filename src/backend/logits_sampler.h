#pragma once

#include <cstdint>
#include <span>

#include "backend/tensor.h"
#include "core/logit_change.h"

namespace dendrite {

/// One draw from a row of raw logits [vocab], with the meaning of sample() in sample/sampler.h.
struct Draw {
  std::int32_t row = 0;
  double temperature = 0;  // 0: the likeliest, ties to the lowest id
  std::int64_t top_k = 0;  // 0: all
  double top_p = 1;
  double min_p = 0;
  double uniform = 0;  // in [0, 1)
  /// [ceil(vocab / 32)]: bit t % 32 of word t / 32 says that t may be drawn, any other token is as
  /// with logit -inf; null: all may. Read before begin_draw returns.
  const std::uint32_t* mask = nullptr;
  /// What is changed about the row for this draw; all log-probs are those of the row as it is. Read
  /// before begin_draw returns.
  LogitEdits edits{};
  /// The row comes to the host as well, as it is: finish_draw copies it to `values` [vocab], unless
  /// that is empty.
  bool wants_row = false;
  std::span<float> values{};

  /// Out; -1: the mask allows nothing. Where nothing that it allows has an edited logit > -inf, -1
  /// or any of it, and logprob is not > -inf.
  std::int32_t token = -1;
  float logprob = 0;  // out: of `token` under the raw logits, -inf if there is none
  double lse = 0;     // out: log(sum(exp(raw logits)))
};

/// A token whose log-prob under a row of logits is wanted.
struct TokenQuery {
  std::int32_t row = 0;
  std::int32_t token = 0;

  float logprob = 0;           // out: logits[row][token] - lse
  double lse = 0;              // out: log(sum(exp(logits[row])))
  std::int32_t likeliest = 0;  // out: of the row, ties to the lowest id
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
  /// the first kept_draws() of the last ones from the device, see PassInputs::token_of_draw. (Of
  /// a draw whose mask allows nothing, it takes token 0.)
  virtual void begin_draw(Tensor logits, std::span<const Draw> draws) = 0;
  virtual void finish_draw(std::span<Draw> draws) = 0;
  /// Nobody will ask for what was begun.
  virtual void forget_draws() = 0;
  virtual std::int32_t kept_draws() const = 0;

  /// Fills what is out of every query, with the very numbers that draws give. Waits for them.
  virtual void log_probs(Tensor logits, std::span<TokenQuery> queries) = 0;
};

}  // namespace dendrite
