#pragma once

#include <span>
#include <vector>

#include "draft/draft_budget.h"
#include "engine/calls/call.h"
#include "engine/loop/admission.h"
#include "step/host.h"
#include "step/pacer.h"
#include "step/shares.h"

namespace dendrite {

/// One turn of the engine after the other: what all calls want becomes one step, and what came of
/// it goes back to them. It decides who gets how many rows; nothing that it decides changes a
/// result.
class EngineTurn final : public StepHost {
 public:
  explicit EngineTurn(EngineCore& engine) : engine_(engine), admission_(engine) {}

  /// Ask, step (plan, room, batch, forward, commit, read), sample, commit. `in_progress`: calls in
  /// all, with those that sit out.
  void run(std::span<Call* const> calls, std::size_t in_progress) DENDRITE_COMPUTES;
  /// Nobody goes on: drops a step that was begun early.
  void drop_begun() DENDRITE_COMPUTES;
  bool has_begun() const DENDRITE_REQUIRES(kComputeLock);

  // --- StepHost
  void collect_holders(std::vector<Holder>& out) DENDRITE_REQUIRES(kTreeLock) override;
  void on_evicted(const Tip& tip, bool running, std::int64_t tokens, std::int64_t pages_before)
      DENDRITE_REQUIRES(kTreeLock) override;
  void on_pressure(Pressure level) DENDRITE_REQUIRES(kTreeLock) override;
  void on_forgotten(std::int64_t pages_before) DENDRITE_REQUIRES(kTreeLock) override;
  void on_planned(std::span<const StepRequest> requests, std::span<const StepOutcome> outcomes)
      DENDRITE_REQUIRES(kComputeLock, kTreeLock) override;
  void before_draws() DENDRITE_COMPUTES override;
  void on_changed() DENDRITE_REQUIRES(kTreeLock) override;

 private:
  /// A session that takes part in the step.
  struct Part {
    explicit Part(SessionCore& of) : session(&of) {}
    SessionCore* session;
    std::vector<Wish*> required;  // in the order of their turns
    std::vector<Wish*> optional;
    std::int64_t wanted = 0;  // rows
    std::size_t first = 0;    // its requests, in order_
    std::size_t end = 0;
  };

  void ask(std::span<Call* const> calls) DENDRITE_COMPUTES;
  void draft(std::span<Call* const> calls) DENDRITE_COMPUTES;
  void propose(double slack) DENDRITE_COMPUTES;
  /// Which of the nodes that were proposed get rows. False: none.
  bool share_rows_among_drafts() DENDRITE_COMPUTES;
  void learn_of_drafts(std::int64_t rows, double ms) DENDRITE_REQUIRES(kTreeLock);
  /// Whose turn it is, and how many rows each session gets.
  StepLimits arrange(std::span<Call* const> calls, std::size_t in_progress,
                     bool behind) DENDRITE_COMPUTES;
  Part& part_of(SessionCore& session);
  std::int64_t rows_of_step() const DENDRITE_REQUIRES(kTreeLock);
  void split_rows(std::int64_t rows) DENDRITE_REQUIRES(kTreeLock);
  void order_requests();
  void hand_out(std::span<Call* const> calls) DENDRITE_COMPUTES;
  void learn(const StepReport& report, double drawn_ms, double took_ms) DENDRITE_COMPUTES;
  void account(const StepReport& report, double took_ms) DENDRITE_COMPUTES;
  void account_part(const Part& part, const StepReport& report, double took_ms)
      DENDRITE_REQUIRES(kTreeLock);
  void account_drafts(const StepReport& report, double took_ms) DENDRITE_REQUIRES(kTreeLock);
  void charge_discarded(std::span<const std::uint64_t> owners) DENDRITE_REQUIRES(kTreeLock);
  /// What the calls have got by the step.
  void note_runs(std::span<Call* const> calls);
  double now_ms() const;

  EngineCore& engine_;
  Pacer pacer_ DENDRITE_GUARDED_BY(kTreeLock);
  DraftBudget budget_;
  Admission admission_ DENDRITE_GUARDED_BY(kTreeLock);
  const EngineTime begin_ = std::chrono::steady_clock::now();
  double last_end_ms_ = 0;  // of the last step: one that was begun early is timed from there

  // Of the turn under way.
  std::vector<Wish> wishes_;         // in the order of the calls, then those for drafts
  std::vector<std::size_t> firsts_;  // of each call's wishes, and the end of all
  std::vector<DraftWish> draft_wishes_;
  std::vector<DraftProvider*> providers_;  // that were asked
  double draft_ms_ = 0;                    // for drafting, if anybody wanted drafts; of it ...
  double propose_ms_ = 0;                  // ... until they were proposed
  double drafted_at_ms_ = 0;               // when that was over
  bool any_drafted_ = false;               // of it got a row
  std::int64_t accepted_ = 0;              // drafted tokens that had become text before the turn
  std::vector<Part> parts_;
  std::int64_t short_rows_ = 0;  // that are wanted by requests which are not long
  std::int64_t long_rows_ = 0;
  std::vector<StepGroup> groups_;      // of parts_
  std::vector<const Wish*> order_;     // of the requests
  std::vector<StepRequest> requests_;  // in that order
  std::vector<StepOutcome> outcomes_;
  std::vector<StepOutcome> of_wishes_;
  std::vector<Lane*> ready_;
};

}  // namespace dendrite
