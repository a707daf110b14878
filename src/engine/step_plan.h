#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "backend/logits_sampler.h"
#include "engine/attention_planner.h"
#include "engine/locks.h"
#include "kv/kv_tree.h"
#include "model/batch.h"

namespace dendrite {

struct BranchState;

/// What a call wants of the next steps: the tokens of a tip computed, and distributions.
struct StepRequest {
  static constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();
  enum class State : std::uint8_t {
    kOpen,    // wants rows; a step that has no pages for it leaves it so, and it waits
    kServed,  // set by the caller: nothing is missing, its pages may go if they are needed
    kNoRoom,  // set by a step: there would be too few pages even if it had all that can be freed
  };

  Tip* tip = nullptr;
  int priority = 0;
  /// Runs only where the others leave rows, and in pages that nobody wants. It is never kNoRoom.
  bool optional = false;
  bool keep_logits = true;  // the tip's next-token distribution is to be kept on its segment
  std::int64_t logits_from = kNone;  // distributions at positions >= this go to the step's sink
  State state = State::kOpen;
  BranchState* branch = nullptr;  // on whose account it goes, in statistics and events
  /// Where the device samples: the step draws this from the tip's distribution as soon as it is
  /// computed, and brings the distribution to the host only if another branch may want it. Null, or
  /// a draw whose `row` the step fills in; its `token` stays -1 if the step did not come to it.
  Draw* draw = nullptr;
  std::int32_t drawn = -1;  // set by a step: the draw's place among all that it made
  /// The draw of the step after, from the distribution after the token that `draw` gives: if all
  /// goes well, the device goes on to it before that token is read. Null: it is not wanted.
  const Draw* next = nullptr;

  /// What the last step did for it, for statistics and events.
  struct Account {
    bool ran = false;                // it was its turn, and there was room
    bool waited = false;             // it was its turn, and there was none
    std::int64_t rows = 0;           // planned because of it
    std::int64_t copies = 0;         // of pages, on write
    std::int64_t copied_tokens = 0;  // slots that those moved
    std::int64_t pages_missing = 0;  // of one that waits
  };
  Account account{};
};

/// Whose next tokens' log-probs a call wants of the rows that its requests asked for with
/// `logits_from`, and where they go.
class LogprobSink {
 public:
  virtual ~LogprobSink() = default;
  /// Tokens whose log-probs are wanted after the token at `position` of `segment`; valid until the
  /// next call.
  virtual std::span<const Token> wanted(const Segment& segment, std::int64_t position)
      DENDRITE_REQUIRES(kComputeLock) = 0;
  /// The log-probs of what wanted() returned, in its order.
  virtual void take(const Segment& segment, std::int64_t position, std::span<const float> logprobs)
      DENDRITE_REQUIRES(kComputeLock) = 0;
};

/// The decision of one step as data, and the batch built from it. Rows of a segment that several
/// requests need are planned once; an ancestor's missing tokens and its descendants' run in one
/// batch.
class StepPlan {
 public:
  explicit StepPlan(std::int64_t page_tokens) : planner_(page_tokens), page_tokens_(page_tokens) {}

  void share_reads(bool share) { planner_.share_reads(share); }

  /// What the call and the model have room for.
  struct Capacity {
    std::int64_t rows = 0;  // of requests that are not optional
    std::int64_t logit_rows = 0;
    std::vector<std::int64_t> windows;  // of the model's layers, each once
    /// Rows of the step, optional ones included, when the others take so many; empty: no more.
    std::function<std::int64_t(std::int64_t rows)> widest{};
  };
  /// Tries to have this many pages free for request number `request`. `alone`: nothing is planned
  /// yet, and nothing will be unless this one is: every other request may lose its pages.
  using MakeRoom = std::function<void(std::int64_t pages, std::size_t request, bool alone)>;

  /// A token that is not known yet: what draw number `drawn` of the step under way will give.
  struct NextRow {
    Tip* tip = nullptr;
    const Draw* draw = nullptr;  // of the token after it
    std::int32_t drawn = 0;
    NextSlot slot{};
  };

  /// Fills `batch` and what commit() needs. Segments' plan marks are clean before and after.
  /// Unless capacity or served requests account for it, at least one request is planned or becomes
  /// kNoRoom: a caller that steps until none is open comes to an end.
  void build(KvTree& tree, std::span<StepRequest> requests, const Capacity& capacity,
             const MakeRoom& make_room);
  /// Fills `batch` with the token after each tip's last, all of them with a distribution, and sorts
  /// `rows` as the batch has them. `runs` is empty afterwards.
  void build_next(KvTree& tree, std::vector<NextRow>& rows, std::span<const std::int64_t> windows);

  /// One planned run of tokens of one segment.
  struct Run {
    Segment* segment = nullptr;
    Tip* owner = nullptr;    // a tip at or below the segment
    std::int64_t begin = 0;  // positions [begin, end)
    std::int64_t end = 0;
    bool store = true;         // false: K and V are held, only the distribution is missing
    bool keep_logits = false;  // the distribution after end - 1 stays on the segment
    std::int64_t logits_from = StepRequest::kNone;
    std::int32_t first_row = 0;
    std::int32_t last_logit_row = -1;  // in batch.logit_rows, of the token at end - 1
    std::int32_t draws = 0;            // of requests, from that row

    /// Whether a branch, a child to come or the prefix index may ask for the distribution after
    /// the step's draws.
    bool outlives_draws() const DENDRITE_REQUIRES(kTreeLock) {
      return keep_logits && segment->refs > draws;
    }
  };
  /// Whose distribution a logit row is.
  struct LogitTarget {
    std::int32_t run = 0;
    std::int64_t position = 0;
  };

  Batch batch;
  std::vector<Run> runs;
  std::vector<LogitTarget> logit_targets;  // one a batch.logit_rows

 private:
  void choose_runs(KvTree& tree, std::span<StepRequest> requests, const Capacity& capacity,
                   const MakeRoom& make_room);
  void choose_optional(KvTree& tree, std::span<StepRequest> requests, const Capacity& capacity,
                       const MakeRoom& make_room);
  /// add_request(), and its account.
  bool serve(KvTree& tree, StepRequest& request, const Capacity& capacity);
  /// False: pages are missing.
  bool add_request(KvTree& tree, const StepRequest& request, const Capacity& capacity);
  bool add_run(const Run& run, const Capacity& capacity);
  void keep_logits(Run& run);
  void order_runs(KvTree& tree);
  void add_mark(const Tip& tip);
  void order_sequences();
  void plan_attention(std::span<const std::int64_t> windows);
  void fill_rows(const KvTree& tree, const Capacity& capacity);
  void add_extra_stores(const KvTree& tree, const Segment& segment);
  void assign_draws(const KvTree& tree, std::span<StepRequest> requests);

  AttentionPlanner planner_;
  std::int64_t page_tokens_;
  std::vector<Segment*> chain_;
  std::vector<std::size_t> waiting_;  // requests without pages
  std::vector<ExtraSlot> extra_slots_;
  std::vector<std::vector<std::int32_t>>
      tables_;  // of runs that are not their owner's last segment
  std::vector<PlanSequence> sequences_;
  std::vector<std::int32_t> order_;
  std::int64_t rows_ = 0;
  std::int64_t logit_rows_ = 0;
};

}  // namespace dendrite
