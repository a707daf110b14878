#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dendrite/events.h"
#include "step/locks.h"
#include "step/request.h"

namespace dendrite {

/// Somebody who holds pages, for who makes room.
struct Holder {
  const Tip* tip = nullptr;
  int priority = 0;
  std::uint64_t last_used = 0;
  bool on_hold = false;  // keeps what it has, unless it runs
  bool in_call = false;  // runs, or will again in a moment
};

/// Whoever has the branches: a step asks it who holds pages, and tells it what happens.
class StepHost {
 public:
  virtual ~StepHost() = default;

  /// Appends every tip that holds pages, those of requests included.
  virtual void collect_holders(std::vector<Holder>& out) DENDRITE_REQUIRES(kTreeLock) = 0;
  /// The tip of a holder has lost K and V of so many positions; the pool's used pages from before.
  virtual void on_evicted(const Tip& tip, bool running, std::int64_t tokens,
                          std::int64_t pages_before) DENDRITE_REQUIRES(kTreeLock) = 0;
  /// Somebody needs pages: what is remembered has begun to go (kSoft), or nothing is left of that
  /// and branches lose theirs now (kHard). Each once a step.
  virtual void on_pressure(Pressure level) DENDRITE_REQUIRES(kTreeLock) = 0;
  /// What was remembered has been forgotten.
  virtual void on_forgotten(std::int64_t pages_before) DENDRITE_REQUIRES(kTreeLock) = 0;
  virtual void on_planned(std::span<const StepRequest> requests,
                          std::span<const StepOutcome> outcomes)
      DENDRITE_REQUIRES(kComputeLock, kTreeLock) = 0;
  /// The device is busy with the pass whose draws come next: what these wait for is set now.
  virtual void before_draws() DENDRITE_COMPUTES = 0;
  /// The tree has changed.
  virtual void on_changed() DENDRITE_REQUIRES(kTreeLock) = 0;
};

}  // namespace dendrite
