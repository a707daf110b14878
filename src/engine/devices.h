#pragma once

#include <vector>

#include "dendrite/engine.h"

namespace dendrite {

/// What EngineOptions::device and devices name.
struct Devices {
  bool gpu = false;
  std::vector<int> indices;  // of each rank
};

/// Throws Error saying what was got and what is expected.
Devices devices_of(const EngineOptions& options);

}  // namespace dendrite
