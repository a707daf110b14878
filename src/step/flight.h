#pragma once

#include <vector>

#include "backend/logits_sampler.h"
#include "backend/tensor.h"
#include "step/step_plan.h"

namespace dendrite {

/// A step whose pass has been handed to the device. One that was begun early, before the tokens of
/// the step before it were read, is handed from turn to turn; the tree knows nothing of it until
/// those tokens are there.
struct Flight {
  bool under_way = false;
  bool early = false;
  std::vector<StepPlan::NextRow> rows;  // of one that was begun early, as its batch has them
  std::vector<Draw> draws;              // begun, on a device that samples
  Tensor logits{};                      // [logit rows, vocab]; overwritten by the next pass

  explicit operator bool() const { return under_way; }
};

}  // namespace dendrite
