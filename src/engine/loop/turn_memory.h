#pragma once

#include <chrono>

#include "draft/draft_budget.h"
#include "engine/loop/admission.h"
#include "step/pacer.h"

namespace dendrite {

/// What turns learn for those that follow.
struct TurnMemory {
  explicit TurnMemory(EngineCore& engine) : admission(engine) {}

  Pacer pacer DENDRITE_GUARDED_BY(kTreeLock);
  DraftBudget budget DENDRITE_GUARDED_BY(kTreeLock);
  Admission admission DENDRITE_GUARDED_BY(kTreeLock);
  /// Of the last step: one that was begun early is timed from there.
  EngineTime last_end = std::chrono::steady_clock::now();
};

}  // namespace dendrite
