#pragma once

#include <span>
#include <vector>

#include "backend/logits_sampler.h"
#include "backend/tensor.h"
#include "step/request.h"
#include "step/step_plan.h"

namespace dendrite {

/// A step whose pass has been handed to the device. One that was begun early, before the tokens of
/// the step before it were read, is handed from turn to turn; the tree knows nothing of it until
/// those tokens are there.
struct Flight {
  bool under_way = false;
  bool early = false;
  std::vector<StepPlan::NextRow> rows;  // of one that was begun early, as its batch has them
  std::vector<Draw> draws;              // on a device that samples
  std::vector<Draw*> chain_draws;       // where the last of them are to go
  bool draws_begun = false;             // else they wait for their masks
  Tensor logits{};                      // [logit rows, vocab]; overwritten by the next pass
  std::int64_t bytes_read = 0;          // see StepReport

  explicit operator bool() const { return under_way; }
  /// Of one that was begun early: masks and edits that its rows' requests have got by now.
  void complete_draws(std::span<const StepRequest> requests,
                      std::span<const StepOutcome> outcomes) {
    for (std::size_t i = 0; i < requests.size(); ++i) {
      if (outcomes[i].drawn < 0) continue;
      Draw& draw = draws[static_cast<std::size_t>(outcomes[i].drawn)];
      draw.mask = requests[i].draw->mask;
      draw.edits = requests[i].draw->edits;
    }
  }
};

}  // namespace dendrite
