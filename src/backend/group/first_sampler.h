#pragma once

#include <cstdint>
#include <span>

#include "backend/logits_sampler.h"

namespace dendrite::group {

/// Draws on the first rank, which has the logits. The others know draws only once the host does.
class FirstSampler final : public LogitsSampler {
 public:
  explicit FirstSampler(LogitsSampler& of_first) : of_first_(of_first) {}

  void begin_draw(Tensor logits, std::span<const Draw> draws) override {
    of_first_.begin_draw(logits, draws);
  }
  void finish_draw(std::span<Draw> draws) override { of_first_.finish_draw(draws); }
  void forget_draws() override { of_first_.forget_draws(); }
  std::int32_t kept_draws() const override { return 0; }
  void log_probs(Tensor logits, std::span<TokenQuery> queries) override {
    of_first_.log_probs(logits, queries);
  }

 private:
  LogitsSampler& of_first_;
};

}  // namespace dendrite::group
