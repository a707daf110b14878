#pragma once

#include <algorithm>
#include <cstdint>
#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "backend/logits_sampler.h"
#include "kv/kv_tree.h"
#include "step/locks.h"

namespace dendrite {

/// What is read of a row of logits for some tokens.
struct RowLogprobs {
  std::vector<float> of_tokens;     // in their order
  double lse = 0;                   // log(sum(exp(logits)))
  Token likeliest = 0;              // ties: the lowest id
  std::vector<TokenLogprob> top{};  // the likeliest ones, as many as were asked for
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
  /// How many of the likeliest tokens are wanted wherever any are. Above 0 such rows come to the
  /// host.
  virtual std::size_t top() const { return 0; }
  /// The log-probs of what wanted() returned, in its order, and the rest of that row. Not called
  /// where nothing was wanted.
  virtual void take(const Segment& segment, std::int64_t position, const RowLogprobs& read)
      DENDRITE_REQUIRES(kComputeLock) = 0;
};

/// Where hidden states of tokens go, behind the model's final norm: of those that its requests
/// have computed.
class HiddenSink {
 public:
  virtual ~HiddenSink() = default;
  virtual bool wants(const Segment& segment, std::int64_t position)
      DENDRITE_REQUIRES(kComputeLock, kTreeLock) = 0;
  /// hidden [dim]. A token that is computed again, after its K and V were evicted, comes again.
  virtual void take(const Segment& segment, std::int64_t position, std::span<const float> hidden)
      DENDRITE_REQUIRES(kComputeLock, kTreeLock) = 0;
};

/// What somebody wants of the next step: the tokens of a tip computed, and distributions.
struct StepRequest {
  static constexpr std::int64_t kNone = std::numeric_limits<std::int64_t>::max();

  Tip* tip = nullptr;
  int priority = 0;
  std::int32_t group = 0;  // whose rows it takes: its place in StepLimits::groups
  /// Runs only where the others leave rows, and in pages that nobody wants. It never gets no_room.
  bool optional = false;
  /// It has had no row yet: it takes no pages that one before it in the order waits for.
  bool fresh = false;
  bool keep_logits = true;  // the tip's next-token distribution is to be kept on its segment
  std::int64_t logits_from = kNone;  // distributions at positions >= this go to `sink`
  LogprobSink* sink = nullptr;
  HiddenSink* hidden = nullptr;  // null: nobody wants hidden states
  /// Where the device samples: the step draws this from the tip's distribution as soon as it is
  /// computed, and brings the distribution to the host only if another branch may want it. Null:
  /// nothing is drawn.
  const Draw* draw = nullptr;
  /// What the draw of a step depends on the token before it, beside its row: it has a mask, or
  /// edits of its logits, by the time that StepHost::before_draws() returns.
  bool draw_waits = false;
  /// Whether the branch will want another token after the one that `draw` gives, as far as is known
  /// before it is read, ...
  bool goes_on = false;
  /// ... and the draw of that one: if all goes well, the device goes on to it before the token is
  /// read. Null: the next step must not begin before that.
  const Draw* next = nullptr;
  /// Of the tip's own segment, after each token from `logits_from` on, as far as the step computes
  /// it: what the device draws for each of `chain_lanes`, as it is by the time that
  /// StepHost::before_draws() returns, or the distributions themselves. Elements that it does not
  /// come to stay as they are.
  std::span<Draw> chain_draws{};
  std::int32_t chain_lanes = 1;
  std::span<std::shared_ptr<const LogitsRow>> chain_rows{};
};

/// Whether a request has all that it wants.
inline bool is_served(const KvTree& tree, const StepRequest& request) {
  return tree.length(*request.tip) == tree.computed(*request.tip) &&
         (!request.keep_logits || tree.segment(*request.tip)->logits != nullptr);
}

/// Rows that a request still wants: of tokens that are not moved, or of its distribution alone.
inline std::int64_t missing_rows(const KvTree& tree, const StepRequest& request) {
  if (is_served(tree, request)) return 0;
  return std::max<std::int64_t>(tree.pending_rows(*request.tip), 1);
}

/// What a step did for a request.
struct StepOutcome {
  bool ran = false;     // it was its turn, and there was room
  bool waited = false;  // it was its turn, and there was none
  /// There would be too few pages even if it had all that can be freed.
  bool no_room = false;
  /// A row that was begun early does not count: the branch is not what it was to be, by then.
  bool stale = false;
  std::int64_t rows = 0;              // planned because of it; of them ...
  std::int64_t redundant_rows = 0;    // ... K and V were held when the step was planned
  std::int64_t regenerated_rows = 0;  // ... computed before, evicted, and now computed again
  std::int64_t new_rows = 0;          // ... of tokens that had no K and V before
  std::int64_t moved = 0;             // positions whose K and V were moved because of it
  std::int64_t copies = 0;            // of pages, on write
  std::int64_t copied_tokens = 0;     // slots that those moved
  std::int64_t pages = 0;             // taken for it, those of copies included
  std::int64_t pages_missing = 0;     // of one that waits
  std::int64_t evictions = 0;         // segments that lost K and V to make room for it
  std::int64_t preemptions = 0;       // times that it lost them itself
  std::int32_t drawn = -1;  // the place of its draw among all that the step made; -1: not made
  Token token = -1;         // what was drawn; -1: nothing
  float logprob = 0;
  /// Where the draw wants its row (Draw::wants_row): that row, and the log of its sum of exps.
  std::shared_ptr<const LogitsRow> row{};
  double lse = 0;
};

/// Those who share a step's rows: the requests of one session.
struct StepGroup {
  std::uint64_t owner = 0;                   // for who reads StepReport::discarded
  std::int64_t budget = StepRequest::kNone;  // rows that it may take at all
  std::int64_t share = StepRequest::kNone;   // rows that it gets before others get theirs
};

/// What a step may compute.
struct StepLimits {
  std::int64_t rows = 0;  // of requests that are not optional
  /// With optional rows it may take so many times as long as without, as far as can be foreseen.
  double slack = 1;
  std::span<const StepGroup> groups{};  // one at least
};

/// Counts of one step.
struct StepReport {
  std::int64_t rows = 0;   // computed
  std::int64_t kept = 0;   // optional requests that needed no row
  std::int64_t moved = 0;  // positions whose K and V came from elsewhere
  std::int64_t pages_acquired = 0;
  /// That its pass had to read: weights, and K and V once for all rows that share the pages.
  std::int64_t bytes_read = 0;
  bool early = false;  // the step began with the one before it
  /// The device was waited for. False: nobody wanted anything of the pass, and where a device works
  /// on its own it may still be under way.
  bool awaited = true;
  /// The owners of rows that were computed for nothing, beside `rows`: begun before it was known
  /// that the branch ends, or that it would be forked. One entry a row.
  std::vector<std::uint64_t> discarded;
};

}  // namespace dendrite
