#pragma once

#include <optional>
#include <span>
#include <vector>

#include "engine/calls/call.h"
#include "engine/calls/exact_behind.h"
#include "engine/loop/turn_memory.h"
#include "step/request.h"

namespace dendrite {

/// One turn of the engine: what all calls want becomes one step, and what came of it goes back to
/// them. It decides who gets how many rows; nothing that it decides changes a result. Each part
/// reads what the parts before it have written down here.
///
/// The tree is locked once each for: what calls want, the step's plan, its rows, what calls get of
/// them, and their tokens. Drafts, and rows that a device keeps, take it once or twice more.
class EngineTurn {
 public:
  /// `in_progress`: calls in all, with those that sit out.
  EngineTurn(EngineCore& engine, TurnMemory& memory, std::span<Call* const> calls,
             std::size_t in_progress)
      : engine_(engine), memory_(memory), calls_(calls), in_progress_(in_progress) {}

  /// Ask, step (plan, room, batch, forward, commit, read), sample, commit.
  void run() DENDRITE_COMPUTES;

  // --- while the step runs, see StepHost
  void tell_planned(std::span<const StepRequest> requests,
                    std::span<const StepOutcome> outcomes) const DENDRITE_REQUIRES(kTreeLock);
  void prepare_draws() DENDRITE_COMPUTES;

  /// The sessions of these rows have had them computed for nothing.
  static void charge_discarded(EngineCore& engine, std::span<const std::uint64_t> owners)
      DENDRITE_REQUIRES(kTreeLock);

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

  StepLimits ask() DENDRITE_COMPUTES;
  void ask_calls() DENDRITE_REQUIRES(kComputeLock, kTreeLock);
  void draft() DENDRITE_COMPUTES;
  void propose(double slack) DENDRITE_COMPUTES;
  /// Which of the nodes that were proposed get rows. False: none.
  bool share_rows_among_drafts() DENDRITE_COMPUTES;
  void learn_of_drafts(std::int64_t rows, double ms) DENDRITE_REQUIRES(kTreeLock);
  /// Whose turn it is, and how many rows each session gets.
  StepLimits arrange() DENDRITE_REQUIRES(kComputeLock, kTreeLock);
  Part& part_of(SessionCore& session);
  std::int64_t rows_of_step() const DENDRITE_REQUIRES(kTreeLock);
  void split_rows(std::int64_t rows) DENDRITE_REQUIRES(kTreeLock);
  void order_requests();
  void hand_out() DENDRITE_REQUIRES(kComputeLock, kTreeLock);
  void learn(const StepReport& report, double drawn_ms, double took_ms)
      DENDRITE_REQUIRES(kComputeLock, kTreeLock);
  void account(const StepReport& report, double took_ms) DENDRITE_REQUIRES(kTreeLock);
  void account_part(const Part& part, const StepReport& report, double took_ms)
      DENDRITE_REQUIRES(kTreeLock);
  void account_drafts(const StepReport& report, double took_ms) DENDRITE_REQUIRES(kTreeLock);
  /// What the calls have got by the step.
  void note_runs();
  double now_ms() const;

  EngineCore& engine_;
  TurnMemory& memory_;
  const std::span<Call* const> calls_;
  const std::size_t in_progress_;
  const EngineTime begin_ = std::chrono::steady_clock::now();

  std::vector<Wish> wishes_;         // in the order of the calls, then those for drafts
  std::vector<std::size_t> firsts_;  // of each call's wishes, and the end of all
  std::optional<ExactBehind> behind_;
  double asked_ms_ = 0;  // when calls and drafts had said what they want

  std::vector<DraftWish> draft_wishes_;
  std::vector<DraftProvider*> providers_;  // that were asked
  double draft_ms_ = 0;                    // for drafting, if anybody wanted drafts; of it ...
  double propose_ms_ = 0;                  // ... until they were proposed
  bool any_drafted_ = false;               // of it got a row
  std::int64_t accepted_ = 0;              // drafted tokens that had become text before the turn

  std::vector<Part> parts_;
  std::int64_t short_rows_ = 0;  // that are wanted by requests which are not long
  std::int64_t long_rows_ = 0;
  std::vector<StepGroup> groups_;      // of parts_
  std::vector<const Wish*> order_;     // of the requests
  std::vector<StepRequest> requests_;  // in that order
  std::vector<StepOutcome> outcomes_;
  double stepped_ms_ = 0;  // when the step was over

  std::vector<StepOutcome> of_wishes_;
  ReadyLanes ready_;
};

}  // namespace dendrite
