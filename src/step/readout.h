#pragma once

#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/logits_sampler.h"
#include "step/locks.h"
#include "step/logits_pool.h"
#include "step/request.h"
#include "step/step_plan.h"

namespace dendrite {

/// What becomes of a step's logits: draws, log-probs, and rows that stay on their segments. On a
/// device that samples, logits stay there but for rows that outlive their draws; else all come to
/// the host.
class Readout {
 public:
  Readout(Backend& backend, std::int64_t vocab, TreeMutex& tree_mutex)
      : backend_(backend), vocab_(vocab), tree_mutex_(tree_mutex) {}

  /// Enqueues the draws that requests want, on a device that samples: `draws`, in their order.
  void begin_draws(std::span<const StepRequest> requests, std::span<const StepOutcome> outcomes,
                   const StepPlan& plan, const Tensor& logits,
                   std::vector<Draw>& draws) DENDRITE_COMPUTES;
  /// Reads them into the outcomes.
  void finish_draws(std::vector<Draw>& draws, std::span<StepOutcome> outcomes) DENDRITE_COMPUTES;
  /// Whether rows beside the draws are to be read, before the next pass overwrites them.
  bool has_rows(const StepPlan& plan) DENDRITE_COMPUTES;
  /// Reads them: log-probs for the sinks, distributions for the segments.
  void take_rows(const StepPlan& plan, const Tensor& logits) DENDRITE_COMPUTES;

  /// Draws from rows that segments keep: draws[i] from *rows[i], on the device, which must have a
  /// sampler.
  void draw_kept(std::span<const LogitsRow* const> rows, std::span<Draw> draws) DENDRITE_COMPUTES;
  /// Log-probs of tokens under a row that a segment keeps.
  std::vector<float> log_probs(const LogitsRow& row,
                               std::span<const Token> tokens) DENDRITE_COMPUTES;

 private:
  void take_on_host(const StepPlan& plan, const Tensor& logits) DENDRITE_COMPUTES;
  void take_log_probs(const StepPlan& plan, const Tensor& logits) DENDRITE_COMPUTES;
  void keep_rows(const StepPlan& plan, const Tensor& logits) DENDRITE_COMPUTES;
  /// Room on the device for so many kept rows.
  Tensor kept_tensor(std::int64_t rows) DENDRITE_REQUIRES(kComputeLock);

  Backend& backend_;
  std::int64_t vocab_;
  TreeMutex& tree_mutex_;
  LogitsPool pool_ DENDRITE_GUARDED_BY(kTreeLock);
  /// Where draw_kept() and log_probs() bring rows.
  std::unique_ptr<Buffer> kept_rows_ DENDRITE_PT_GUARDED_BY(kComputeLock);
};

}  // namespace dendrite
