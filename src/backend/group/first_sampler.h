#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "backend/group/exchange.h"
#include "backend/logits_sampler.h"

namespace dendrite::group {

/// Draws on the first of several devices, which has the logits, and hands the others the tokens.
class FirstSampler final : public LogitsSampler {
 public:
  FirstSampler(LogitsSampler& of_first, Exchange& exchange)
      : of_first_(of_first), exchange_(exchange) {}

  void begin_draw(Tensor logits, std::span<const Draw> draws) override {
    of_first_.begin_draw(logits, draws);
    exchange_.share_draws(std::min<std::int64_t>(std::ssize(draws), kept_draws()));
  }
  void finish_draw(std::span<Draw> draws) override { of_first_.finish_draw(draws); }
  void forget_draws() override { of_first_.forget_draws(); }
  std::int32_t kept_draws() const override { return of_first_.kept_draws(); }
  void log_probs(Tensor logits, std::span<TokenQuery> queries) override {
    of_first_.log_probs(logits, queries);
  }

 private:
  LogitsSampler& of_first_;
  Exchange& exchange_;
};

}  // namespace dendrite::group
