#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/locks.h"
#include "engine/step_plan.h"

namespace dendrite {

struct EngineCore;
struct StepReport;

/// The step after a decode step, begun on a device that samples before that step's tokens are
/// read, so that the device never waits for the host. The tree knows nothing of it: when its tokens
/// are there, a row counts if its branch has grown by its token and by nothing else. All else (the
/// branch has ended, or was forked meanwhile) leaves it without effect, and a page it took free.
class EarlyStep {
 public:
  explicit EarlyStep(EngineCore& engine) : engine_(engine) {}

  bool begun() const { return !rows_.empty(); }

  /// Begins the step after the one under way, whose draws are begun and whose rows are committed,
  /// for the requests with a `next`. Does nothing where a row would not have a place, or where
  /// there are more than `most_rows`. What is refused here is refused again, and told, by the step
  /// itself.
  void begin(std::span<const StepRequest> requests, std::int64_t most_rows) DENDRITE_COMPUTES;

  /// The step that was begun becomes the one under way: commits the rows that count, and gives
  /// their requests accounts and draws. False: none does, and nothing is under way.
  bool take(std::span<StepRequest> requests, StepReport& report) DENDRITE_COMPUTES;

  /// Draws of the step under way, to be finished.
  std::vector<Draw>& draws() { return draws_; }

  /// At the end of a call: leaves it without effect, if it was begun, and forgets draws that an
  /// error left unfinished. The rows that it had.
  std::int64_t drop() DENDRITE_COMPUTES;

 private:
  bool settle(const StepPlan::NextRow& row, const Draw& draw, StepRequest& request)
      DENDRITE_REQUIRES(kTreeLock);
  bool find_places(std::span<const StepRequest> requests) DENDRITE_REQUIRES(kTreeLock);
  void give_places_back() DENDRITE_REQUIRES(kTreeLock);

  EngineCore& engine_;
  std::vector<StepPlan::NextRow> rows_;  // as the batch has them
  std::vector<Draw> next_draws_;         // of rows_
  std::vector<Draw> draws_;
};

}  // namespace dendrite
