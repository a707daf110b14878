#pragma once

#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <vector>

#include "engine/attention_planner.h"
#include "kv/kv_tree.h"
#include "model/batch.h"

namespace dendrite {

/// What a call wants of the next steps: the tokens of a tip computed, and distributions.
struct StepRequest {
  static constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();

  Tip* tip = nullptr;
  bool keep_logits = true;  // the tip's next-token distribution is to be kept on its segment
  std::int64_t logits_from = kNone;  // distributions at positions >= this go to the step's sink
  bool no_room = false;              // set by a step: it had no pages for this request
};

/// Receives the next-token logits [vocab] after the token at `position` of `segment`.
using LogitsSink = std::function<void(const Segment& segment, std::int64_t position,
                                      std::span<const float> logits)>;

/// The decision of one step as data, and the batch built from it. Rows of a segment that several
/// requests need are planned once; an ancestor's missing tokens and its descendants' run in one
/// batch.
class StepPlan {
 public:
  explicit StepPlan(std::int64_t page_tokens) : planner_(page_tokens), page_tokens_(page_tokens) {}

  struct Limits {
    std::int64_t rows = 0;
    std::int64_t logit_rows = 0;
    std::vector<std::int64_t> windows;
  };
  /// Tries to have this many pages free.
  using MakeRoom = std::function<void(std::int64_t pages)>;

  /// Fills `batch` and what commit() needs. Segments' plan marks are clean before and after.
  void build(KvTree& tree, std::span<StepRequest> requests, const Limits& limits,
             const MakeRoom& make_room);

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
  void choose_runs(KvTree& tree, std::span<StepRequest> requests, const Limits& limits,
                   const MakeRoom& make_room);
  bool add_run(const Run& run, const Limits& limits);
  void keep_logits(Run& run);
  void order_runs(KvTree& tree);
  void fill_rows(const KvTree& tree, const Limits& limits);
  void add_extra_stores(const KvTree& tree, const Segment& segment);

  AttentionPlanner planner_;
  std::int64_t page_tokens_;
  std::vector<Segment*> chain_;
  std::vector<ExtraSlot> extra_slots_;
  std::vector<std::vector<std::int32_t>>
      tables_;  // of runs that are not their owner's last segment
  std::vector<PlanSequence> sequences_;
  std::vector<std::int32_t> order_;
  std::int64_t rows_ = 0;
  std::int64_t logit_rows_ = 0;
};

}  // namespace dendrite
