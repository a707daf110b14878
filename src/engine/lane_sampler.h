#pragma once

#include <span>
#include <vector>

#include "engine/lane.h"
#include "engine/session_core.h"

namespace dendrite {

/// How the lanes of one call draw: where the backend samples, on the device and within the step;
/// else on the host, from the distributions that the segments keep.
class LaneSampler {
 public:
  /// Throws Error for parameters out of range.
  LaneSampler(const SessionCore& session, const DecodeParams& params);

  const SamplerSettings& settings() const { return settings_; }
  /// Whether a penalty looks at the lanes' `history`.
  bool wants_history() const { return settings_.repetition_penalty != 1; }
  /// Before a step: what the step is to draw for the lane; null: nothing.
  Draw* prepare(Lane& lane) const;
  /// What the step after is to draw for a lane that the step draws for.
  const Draw* prepare_next(Lane& lane) const;
  bool on_device() const { return on_device_; }
  /// Steps draw for its lanes; else they are drawn from rows that come to the host.
  bool draws_in_step() const { return on_device_ && params_.top_logprobs <= 0; }
  /// What is drawn for the lane when it has so many tokens.
  Draw draw_of(const Lane& lane, std::int64_t length) const;
  /// Whether logit_bias forbids tokens, and this one.
  bool bans_any() const;
  bool is_banned(Token token) const;
  /// On the host: the lane's token, from its logits; -1: there is none.
  void draw(Lane& lane, SamplerScratch& scratch) const;
  /// The lane's token is known: its log-prob and, when asked for, the likeliest ones, under the
  /// `lse` of its logits.
  void choose(Lane& lane, float logprob, double lse) const;

 private:
  double uniform_of(const Lane& lane, std::int64_t length) const;

  const SessionCore& session_;
  EngineCore& engine_;
  const DecodeParams& params_;  // the call's
  SamplerSettings settings_;
  bool on_device_;  // the device draws
};

/// After a step, for lanes of any calls that have their `draw` or `logits`: sets `token` and
/// `chosen`.
void sample_lanes(EngineCore& engine, std::span<Lane* const> lanes) DENDRITE_COMPUTES;

/// Sampling parameters with the model's defaults filled in; checked.
SamplerSettings resolve(const DecodeParams& params, const EngineCore& engine);

}  // namespace dendrite
