#pragma once

#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "backend/backend.h"
#include "kv/kv_debug.h"
#include "kv/kv_tree.h"
#include "kv/memories.h"
#include "model/model.h"
#include "model/read_along.h"
#include "step/flight.h"
#include "step/host.h"
#include "step/readout.h"
#include "step/request.h"
#include "step/step_plan.h"
#include "step/step_times.h"

namespace dendrite {

/// Turns of the device: the one place where the model runs. Knows tips and tokens, and neither
/// branches nor sessions nor text. All that it refers to outlives it.
class Stepper {
 public:
  struct Parts {
    Backend& backend;
    Model& model;
    PathStores stores;
    KvTree& tree;
    Memories memories;
    KvDebug* debug;  // null: not in debug mode
    StepHost& host;
    TreeMutex& tree_mutex;
    std::int64_t vocab;
    /// Reads along with the model, into a store of its own. Null: nobody does.
    ReadAlong* drafter = nullptr;
    std::int64_t moves_a_step = 2048;  // positions whose K and V are moved, at most
  };
  explicit Stepper(const Parts& parts);

  /// One turn: plan (who runs, in the order of `requests`, how many tokens each), make room (pages;
  /// a shared page is copied before its first write; others lose theirs), build the batch, forward,
  /// commit, read what was asked for. Brings requests nearer to being served: afterwards a
  /// request's missing tokens may all be computed, or some of them, or it waits for rows or pages,
  /// or there is no_room for it. Where the device samples, the next step may be begun before the
  /// tokens of this one are read: its rows count if by the next turn their branches have grown by
  /// those tokens and by nothing else, and else leave no trace. outcomes[i] is of requests[i].
  StepReport step(std::span<const StepRequest> requests, std::span<StepOutcome> outcomes,
                  const StepLimits& limits) DENDRITE_COMPUTES;

  /// Nobody goes on: a step that was begun leaves no trace. The owners of its rows, as in
  /// StepReport::discarded. Also after a step that threw.
  std::vector<std::uint64_t> drop_begun() DENDRITE_COMPUTES;

  /// The device is busy with the next step already.
  bool has_begun() const DENDRITE_REQUIRES(kComputeLock) { return begun_.under_way; }
  Readout& readout() { return readout_; }
  /// false: each sequence reads its pages by itself; for comparisons.
  void share_reads(bool share) DENDRITE_REQUIRES(kComputeLock) { plan_.share_reads(share); }
  /// Of steps by their rows.
  std::unique_ptr<StepTimes> times DENDRITE_PT_GUARDED_BY(kTreeLock) =
      std::make_unique<StepTimes>();

 private:
  void plan(std::span<const StepRequest> requests, std::span<StepOutcome> outcomes,
            const StepLimits& limits) DENDRITE_COMPUTES;
  void forget_states() DENDRITE_COMPUTES;
  void count_runs(std::span<StepOutcome> outcomes) DENDRITE_REQUIRES(kComputeLock, kTreeLock);
  void check_writes() DENDRITE_REQUIRES(kComputeLock, kTreeLock);
  void move() DENDRITE_REQUIRES(kComputeLock);
  Flight launch() DENDRITE_COMPUTES;
  /// Of a pass over the plan's batch.
  std::int64_t bytes_to_read() const DENDRITE_REQUIRES(kComputeLock);
  /// Logits of the plan's batch.
  Tensor forward() DENDRITE_REQUIRES(kComputeLock);
  /// Of a pass that is under way.
  void begin_draws(Flight& flight, std::span<const StepRequest> requests,
                   std::span<const StepOutcome> outcomes) DENDRITE_COMPUTES;
  void commit() DENDRITE_REQUIRES(kComputeLock, kTreeLock);
  void collect(Flight& flight, std::span<StepOutcome> outcomes) DENDRITE_COMPUTES;
  bool has_sampler() { return parts_.backend.sampler() != nullptr; }

  // --- steps that are begun early (stepper_early.cpp)
  /// The step that was begun becomes the one under way: its rows that count are committed. None
  /// does, or none was begun: an empty one.
  Flight adopt(Flight begun, std::span<const StepRequest> requests,
               std::span<StepOutcome> outcomes) DENDRITE_COMPUTES;
  bool settle(const StepPlan::NextRow& row, const Draw& draw, const StepRequest& request)
      DENDRITE_REQUIRES(kTreeLock);
  /// Plans the step after `flight`, whose rows are committed; an empty one where a row would not
  /// have a place, or could not be refused and told here as a step of its own would.
  Flight plan_next(const Flight& flight, std::span<const StepRequest> requests,
                   std::span<const StepOutcome> outcomes, const StepLimits& limits)
      DENDRITE_REQUIRES(kComputeLock, kTreeLock);
  /// Begins it; empty where it can't be.
  Flight begin(Flight next) DENDRITE_COMPUTES;
  bool find_places(std::span<const StepRequest> requests, std::span<const StepOutcome> outcomes,
                   const StepLimits& limits, std::vector<StepPlan::NextRow>& rows)
      DENDRITE_REQUIRES(kComputeLock, kTreeLock);
  void give_places_back(const std::vector<StepPlan::NextRow>& rows) DENDRITE_REQUIRES(kTreeLock);

  Parts parts_;
  StepPlan plan_ DENDRITE_GUARDED_BY(kComputeLock);
  Readout readout_;
  Flight begun_ DENDRITE_GUARDED_BY(kComputeLock);       // the step after the last one
  StepReport report_ DENDRITE_GUARDED_BY(kComputeLock);  // of the turn under way
};

}  // namespace dendrite
