#pragma once

#include <span>

#include "engine/calls/call.h"
#include "engine/loop/turn_memory.h"
#include "step/host.h"

namespace dendrite {

class EngineTurn;

/// One turn of the engine after the other, and what their steps ask and tell.
class TurnHost final : public StepHost {
 public:
  explicit TurnHost(EngineCore& engine) : engine_(engine), memory_(engine) {}

  /// See EngineTurn.
  void run(std::span<Call* const> calls, std::size_t in_progress) DENDRITE_COMPUTES;
  /// Nobody goes on: drops a step that was begun early.
  void drop_begun() DENDRITE_COMPUTES;
  bool has_begun() const DENDRITE_REQUIRES(kComputeLock);

  // --- StepHost
  void collect_holders(std::vector<Holder>& out) DENDRITE_REQUIRES(kTreeLock) override;
  void on_evicted(const Tip& tip, bool running, std::int64_t tokens, std::int64_t pages_before)
      DENDRITE_REQUIRES(kTreeLock) override;
  void on_pressure(Pressure level) DENDRITE_REQUIRES(kTreeLock) override;
  void on_forgotten(std::int64_t pages_before) DENDRITE_REQUIRES(kTreeLock) override;
  void on_planned(std::span<const StepRequest> requests, std::span<const StepOutcome> outcomes)
      DENDRITE_REQUIRES(kComputeLock, kTreeLock) override;
  void before_draws() DENDRITE_COMPUTES override;
  void on_changed() DENDRITE_REQUIRES(kTreeLock) override;

 private:
  EngineCore& engine_;
  TurnMemory memory_;
  EngineTurn* turn_ = nullptr;  // the one under way, for as long as its step runs
};

}  // namespace dendrite
