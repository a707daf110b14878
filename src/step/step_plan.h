#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "backend/kv_move.h"
#include "kv/kv_tree.h"
#include "model/batch.h"
#include "step/attention_planner.h"
#include "step/recurrence_planner.h"
#include "step/request.h"

namespace dendrite {

/// The decision of one step as data, and the batch built from it. Rows of a segment that several
/// requests need are planned once; an ancestor's missing tokens and its descendants' run in one
/// batch.
class StepPlan {
 public:
  explicit StepPlan(std::int64_t page_tokens) : planner_(page_tokens), page_tokens_(page_tokens) {}

  void share_reads(bool share) { planner_.share_reads(share); }
  /// Batches say where their tokens are (Batch::places), for whoever reads along.
  void tell_places(bool tell) { tells_places_ = tell; }

  /// What the step and the model have room for.
  struct Capacity {
    std::int64_t rows = 0;  // of requests that are not optional
    std::int64_t logit_rows = 0;
    std::int64_t moves = 0;  // positions that may be moved
    std::span<const StepGroup> groups;
    std::vector<AttentionWindow> windows;  // of the model's layers, each once
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
    bool waits = false;          // for the token, see StepRequest::draw_waits
    std::int32_t drawn = 0;
    NextSlot slot{};
    std::uint64_t owner = 0;  // see StepGroup
    Token token = -1;         // what it gave, once that was read
  };

  /// Fills `batch` and what commit() needs. Segments' plan marks are clean before and after.
  /// Unless capacity or served requests account for it, at least one request is planned or gets
  /// no_room: who steps until nobody wants anything more comes to an end.
  void build(KvTree& tree, std::span<const StepRequest> requests, std::span<StepOutcome> outcomes,
             const Capacity& capacity, const MakeRoom& make_room);
  /// Before the rows of build_next() are found.
  void begin_next(KvTree& tree) { recurrence_.begin(tree); }
  /// Of each row, in their order. False: recurrent layers can't go on from there without others.
  bool add_next(KvTree& tree, const Tip& tip, const NextSlot& slot) {
    return tree.states() == nullptr || recurrence_.add_next(tree, tip, slot);
  }
  /// Fills `batch` with the token after each tip's last, all of them with a distribution, and sorts
  /// `rows` as the batch has them. `runs` is empty afterwards.
  void build_next(KvTree& tree, std::vector<NextRow>& rows,
                  std::span<const AttentionWindow> windows);

  /// One planned run of tokens of one segment.
  struct Run {
    Segment* segment = nullptr;
    Tip* owner = nullptr;     // a tip at or below the segment
    std::size_t request = 0;  // because of which it was planned
    std::int64_t begin = 0;   // positions [begin, end)
    std::int64_t end = 0;
    /// Rows begin here, at or before `begin`: recurrent layers go through what was computed before
    /// again, from where their state is kept. A run may be that alone (begin == end).
    std::int64_t rows_begin = 0;
    std::int64_t rows_end = 0;
    bool store = true;         // false: K and V are held, only the distribution is missing
    bool keep_logits = false;  // the distribution after end - 1 stays on the segment
    std::int64_t logits_from = StepRequest::kNone;
    LogprobSink* sink = nullptr;
    HiddenSink* hidden = nullptr;
    std::span<Draw> chain_draws{};  // see StepRequest
    std::int32_t chain_lanes = 1;
    std::span<std::shared_ptr<const LogitsRow>> chain_rows{};
    std::int32_t first_row = 0;        // of `begin`
    std::int32_t states = -1;          // its number in the RecurrencePlanner
    std::int32_t last_logit_row = -1;  // in batch.logit_rows, of the token at end - 1
    std::int32_t served = 0;           // references to the segment of whom the step's draws are all

    /// Whether a branch, a child to come or the prefix index may ask for the distribution after
    /// the step's draws.
    bool outlives_draws() const DENDRITE_REQUIRES(kTreeLock) {
      return keep_logits && segment->refs > served;
    }
  };
  /// Positions [begin, end) of a moved segment, whose K and V are brought from their source before
  /// the pass. They take no rows; the pass sees them.
  struct Move {
    Segment* segment = nullptr;
    std::size_t request = 0;
    std::int64_t begin = 0;
    std::int64_t end = 0;
  };
  /// Whose distribution a logit row is.
  struct LogitTarget {
    std::int32_t run = 0;
    std::int64_t position = 0;
  };

  Batch batch;
  std::vector<Run> runs;
  std::vector<Move> moves;
  std::vector<KvMove> slot_moves;          // of `moves`, and of heads that they share
  std::vector<LogitTarget> logit_targets;  // one a batch.logit_rows
  std::vector<std::int32_t> draw_rows;     // of StepOutcome::drawn, in batch.logit_rows

 private:
  /// Plan marks of segments that are moved: their place in `moves`, and this.
  static constexpr std::int32_t kMoveMark = 1 << 30;

  /// The step under way, as its parts see it.
  struct Turn {
    KvTree& tree;
    std::span<const StepRequest> requests;
    std::span<StepOutcome> outcomes;
    const Capacity& capacity;
    const MakeRoom& make_room;
  };

  /// What rows_ and logit_rows_ may come to.
  struct Limit {
    std::int64_t rows = 0;
    std::int64_t logit_rows = 0;
  };

  void choose_runs(const Turn& turn);
  void choose_shared(const Turn& turn);
  void choose_left_over(const Turn& turn);
  void choose_alone(const Turn& turn);
  void choose_optional(const Turn& turn);
  void serve_optional(const Turn& turn, std::int64_t widest);
  bool is_full(const Turn& turn) const;
  /// For a request whose group may have so many rows at most.
  Limit limit_of(const Turn& turn, const StepRequest& request, std::int64_t most) const;
  /// serve(), after making room if need be.
  bool serve_with_room(const Turn& turn, std::size_t i, Limit limit);
  /// add_request(), and its outcome.
  bool serve(const Turn& turn, std::size_t i, Limit limit);
  /// False: pages are missing.
  bool add_request(const Turn& turn, std::size_t i, Limit limit);
  /// What the tip lacks: runs and moves, and runs of the sources that moves wait for.
  void add_chain(const Turn& turn, Tip& tip, std::size_t i, Limit limit, bool is_source);
  bool add_run(KvTree& tree, const Run& run, Limit limit);
  bool add_move(const Turn& turn, Segment& segment, std::size_t i);
  void find_slots(KvTree& tree);
  void add_slot_moves(KvTree& tree, const Move& move);
  void add_slots(std::span<const std::int32_t> table, std::int64_t shift, std::int64_t position,
                 std::int64_t to);
  void keep_logits(Run& run);
  void order_runs(KvTree& tree);
  void add_mark(const Tip& tip);
  void order_sequences();
  void plan_attention(std::span<const AttentionWindow> windows);
  void add_places();
  void add_rows_before(const KvTree& tree, const Run& run);
  void fill_rows(const KvTree& tree, const Capacity& capacity);
  void add_extra_stores(const KvTree& tree, const Segment& segment);
  void assign_draws(const Turn& turn);

  AttentionPlanner planner_;
  RecurrencePlanner recurrence_;
  std::int64_t page_tokens_;
  bool tells_places_ = false;
  std::vector<std::size_t> waiting_;   // requests without pages
  std::vector<std::int64_t> taken_;    // rows, by each group
  bool any_ready_ = false;             // a request needs no row
  bool held_back_ = false;             // a run that may not come back yet (RecurrencePlanner)
  bool comes_back_anyhow_ = false;     // the next one may
  std::vector<Segment*> chain_;        // scratch of add_chain
  std::vector<Run> ordered_runs_;      // ... of order_runs
  std::vector<PlanSequence> ordered_;  // ... of order_sequences
  std::vector<ExtraSlot> extra_slots_;
  std::vector<std::vector<std::int32_t>>
      tables_;  // of runs that are not their owner's last segment
  std::vector<PlanSequence> sequences_;
  std::vector<std::int32_t> order_;
  std::int64_t rows_ = 0;
  std::int64_t logit_rows_ = 0;
  std::int64_t moved_ = 0;
};

}  // namespace dendrite
