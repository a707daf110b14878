#pragma once

#include <memory>
#include <span>
#include <vector>

#include "backend/backend.h"
#include "backend/logits_sampler.h"
#include "step/flight.h"
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

  /// Enqueues the draws that requests want, on a device that samples: flight.draws, first those of
  /// outcomes, in their order, then those of chains.
  void begin_draws(std::span<const StepRequest> requests, std::span<const StepOutcome> outcomes,
                   const StepPlan& plan, Flight& flight) DENDRITE_COMPUTES;
  /// Reads them into the outcomes, and into the chains.
  void finish_draws(Flight& flight, std::span<StepOutcome> outcomes) DENDRITE_COMPUTES;

  // --- on a device that samples: rows beside the draws
  /// Whether any are to be read, before the next pass overwrites them.
  static bool has_rows(const StepPlan& plan) DENDRITE_REQUIRES(kTreeLock);
  /// Reads them: log-probs for the sinks, distributions for the segments.
  void take_rows(const StepPlan& plan, const Tensor& logits) DENDRITE_COMPUTES;

  // --- elsewhere: all rows
  using Rows = std::vector<std::shared_ptr<LogitsRow>>;  // of the plan's logit_targets
  Rows read_rows(const StepPlan& plan, const Tensor& logits) DENDRITE_COMPUTES;
  /// The same for sinks and segments; who else wants one takes it out of the rows.
  static void give_rows(const StepPlan& plan, Rows& rows)
      DENDRITE_REQUIRES(kComputeLock, kTreeLock);

  /// Whether somebody wants hidden states of the plan's rows; and gives them: hidden [rows, dim].
  static bool wants_hidden(const StepPlan& plan);
  void take_hidden(const StepPlan& plan, const Tensor& hidden) DENDRITE_COMPUTES;

  /// Draws from rows that segments keep: draws[i] from *rows[i], on the device, which must have a
  /// sampler.
  void draw_kept(std::span<const LogitsRow* const> rows, std::span<Draw> draws) DENDRITE_COMPUTES;
  /// Of a row that a segment keeps, and so many of its likeliest tokens. Requires: a token at
  /// least.
  RowLogprobs log_probs(const LogitsRow& row, std::span<const Token> tokens,
                        std::size_t top = 0) DENDRITE_COMPUTES;
  /// Of rows that segments keep, as log_probs() says them; on the device, which must have a
  /// sampler.
  std::vector<double> log_sum_exps(std::span<const LogitsRow* const> rows) DENDRITE_COMPUTES;

 private:
  void take_log_probs(const StepPlan& plan, const Tensor& logits) DENDRITE_COMPUTES;
  void keep_rows(const StepPlan& plan, const Tensor& logits) DENDRITE_COMPUTES;
  void take_chains(const StepPlan& plan, const Tensor& logits) DENDRITE_COMPUTES;
  /// Room on the device for so many kept rows.
  Tensor kept_tensor(std::int64_t rows) DENDRITE_REQUIRES(kComputeLock);
  /// Brings rows to the device, neighbours that are one only once, and calls `use` for as many as
  /// fit at a time: with the tensor, the index of the first, and each one's row in the tensor.
  template <typename Use>
  void with_kept(std::span<const LogitsRow* const> rows, Use use) DENDRITE_COMPUTES;

  Backend& backend_;
  std::int64_t vocab_;
  TreeMutex& tree_mutex_;
  LogitsPool pool_;
  /// Where rows that segments keep are brought.
  std::unique_ptr<Buffer> kept_rows_ DENDRITE_PT_GUARDED_BY(kComputeLock);
};

}  // namespace dendrite
