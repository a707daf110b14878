#pragma once

#include <span>
#include <vector>

#include "engine/lane.h"
#include "engine/session_core.h"

namespace dendrite {

/// Draws the lanes' next tokens by one call's parameters: where the backend samples, on the device
/// and within the step; else here, from the distributions that the segments keep.
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
  /// After a step, for lanes that have their `draw` or `logits`: sets `token` and `chosen`.
  void sample(std::span<Lane* const> lanes) const DENDRITE_REQUIRES(kComputeLock);

 private:
  double uniform_of(const Lane& lane, std::int64_t length) const;
  Draw draw_of(const Lane& lane, std::int64_t length) const;
  void draw_kept(std::span<Lane* const> lanes) const DENDRITE_REQUIRES(kComputeLock);
  void draw(Lane& lane, SamplerScratch& scratch) const;
  void choose(Lane& lane, float logprob) const;

  const SessionCore& session_;
  EngineCore& engine_;
  const DecodeParams& params_;
  SamplerSettings settings_;
  bool on_device_;  // the device draws
};

}  // namespace dendrite
