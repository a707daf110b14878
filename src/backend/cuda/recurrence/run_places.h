#pragma once

#include <cstdint>

#include "backend/recurrence_plan.h"

namespace dendrite::cuda {

/// RecurrencePlan::Run, and when it may run: behind all runs of lower levels.
struct LeveledRun {
  RecurrencePlan::Run run;
  std::int32_t level = 0;
};

/// A pass's runs, and where the states of a layer lie that they read and leave.
struct RunPlaces {
  // Of the layer; from slot to slot `..._stride` floats.
  float* anchors = nullptr;
  std::int64_t anchor_stride = 0;
  float* journals = nullptr;
  std::int64_t journal_stride = 0;
  // On the device.
  const LeveledRun* runs = nullptr;
  std::int32_t run_count = 0;
  const std::int32_t* row_journals = nullptr;
  const std::int32_t* known = nullptr;
  const std::int32_t* new_anchors = nullptr;
};

}  // namespace dendrite::cuda
