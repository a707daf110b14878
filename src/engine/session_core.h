#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "dendrite/session.h"
#include "engine/branch_state.h"
#include "engine/engine_core.h"

namespace dendrite {

/// One agent's tree: its branches, budget and counters. Lives until the last of its handles (the
/// Session's and every Branch's) is gone.
struct SessionCore : std::enable_shared_from_this<SessionCore> {
  SessionCore(std::shared_ptr<EngineCore> of, const SessionOptions& with);
  ~SessionCore();
  SessionCore(const SessionCore&) = delete;
  SessionCore& operator=(const SessionCore&) = delete;

  std::shared_ptr<EngineCore> engine;
  SessionOptions options;
  std::uint64_t number = 0;  // among the engine's sessions, from 1
  /// Set while branches live: each keeps the tree alive.
  std::shared_ptr<SessionCore> self DENDRITE_GUARDED_BY(kTreeLock);
  std::deque<BranchState> slab DENDRITE_GUARDED_BY(kTreeLock);  // addresses never move
  BranchState* free_list DENDRITE_GUARDED_BY(kTreeLock) = nullptr;
  std::uint64_t next_id DENDRITE_GUARDED_BY(kTreeLock) = 1;
  /// By a hash of the tokens: how often given.
  std::map<std::uint64_t, std::uint64_t> prompts DENDRITE_GUARDED_BY(kTreeLock);
  /// Pages of all live branches, had each its own.
  std::int64_t naive_pages DENDRITE_GUARDED_BY(kTreeLock) = 0;
  double spent_ms DENDRITE_GUARDED_BY(kTreeLock) = 0;
  std::int64_t ahead_rows DENDRITE_GUARDED_BY(kTreeLock) = 0;  // computed ahead, and not taken over
  Stats stats DENDRITE_GUARDED_BY(kTreeLock);
  std::vector<float> fork_samples DENDRITE_GUARDED_BY(kTreeLock);  // ns, the most recent ones
  std::size_t next_fork_sample DENDRITE_GUARDED_BY(kTreeLock) = 0;
  std::optional<KvShortage> shortage DENDRITE_GUARDED_BY(kTreeLock);

  BranchState* make_branch(const Inherited& inherited) DENDRITE_REQUIRES(kTreeLock);
  Branch fork(BranchState& parent, const ForkOptions& options) DENDRITE_REQUIRES(kTreeLock);
  Branch fork_at(BranchState& parent, std::int64_t length, const ForkOptions& options)
      DENDRITE_REQUIRES(kTreeLock);
  /// A fork with one more token, whose log-prob is that.
  Branch child(BranchState& parent, const TokenLogprob& token) DENDRITE_REQUIRES(kTreeLock);
  void drop(BranchState* state) DENDRITE_REQUIRES(kTreeLock);
  /// Requires another owner of the session: its last branch may be among these.
  void prune(std::span<Branch> branches) DENDRITE_REQUIRES(kTreeLock);
  void append(BranchState& branch, std::span<const Token> tokens) DENDRITE_REQUIRES(kTreeLock);
  /// What was drawn ahead for the branch; begun, with `resolve`d settings, if there is nothing.
  Ahead& ahead_of(BranchState& branch, const SamplerSettings& settings, int top)
      DENDRITE_REQUIRES(kTreeLock);
  /// The branch grows by the first token drawn ahead; with the last one its Ahead is gone.
  void take_ahead(BranchState& branch) DENDRITE_REQUIRES(kTreeLock);
  void drop_ahead(BranchState& branch) DENDRITE_REQUIRES(kTreeLock);
  /// Rows that count against the budget: drawn ahead, only those taken over.
  std::int64_t spent_tokens() const DENDRITE_REQUIRES(kTreeLock) {
    return stats.tokens_computed - ahead_rows;
  }
  /// A request of the branch's own would have computed its first `tokens` tokens by now.
  void count_independent(BranchState& branch, std::int64_t tokens) DENDRITE_REQUIRES(kTreeLock);
  void record_kv_bytes() DENDRITE_REQUIRES(kTreeLock);
  void record_shortage(const StepRequest& request) DENDRITE_REQUIRES(kTreeLock);

  // The text state of a branch, for whoever holds its handle. Tokenizers that cannot be followed
  // token by token have none.
  /// Makes it known. O(length), where the branch was cut from a longer one or restored.
  void find_text(BranchState& branch) const DENDRITE_EXCLUDES(kTreeLock);
  /// The branch's text went on by these tokens.
  void add_text(BranchState& branch, std::span<const Token> tokens) const;
  Branch prefill(std::span<const Token> tokens, const PrefillOptions& options)
      DENDRITE_EXCLUDES(kTreeLock);

  /// A handle to a state that has none yet.
  static Branch handle(BranchState* state) { return Branch(state); }

 private:
  BranchState* take_state(const Inherited& inherited) DENDRITE_REQUIRES(kTreeLock);
  void give_state_back(BranchState& state) DENDRITE_REQUIRES(kTreeLock);
  Branch fork_from(const BranchState& parent, Tip tip, std::uint64_t stream)
      DENDRITE_REQUIRES(kTreeLock);
  Branch untimed_fork(BranchState& parent, const ForkOptions& fork_options)
      DENDRITE_REQUIRES(kTreeLock);
  static std::uint64_t stream_of_fork(BranchState& parent, std::uint64_t length,
                                      const ForkOptions& fork_options) DENDRITE_REQUIRES(kTreeLock);
  std::uint64_t stream_of_prompt(std::span<const Token> tokens) DENDRITE_REQUIRES(kTreeLock);
  void record_fork_time(float nanoseconds) DENDRITE_REQUIRES(kTreeLock);
  std::int64_t pages_of(const Tip& tip) const DENDRITE_REQUIRES(kTreeLock);
};

/// One call that computes: holds the compute lock, counts into the session, watches budget and
/// cancellation.
class DENDRITE_SCOPED_LOCK ComputeCall {
 public:
  ComputeCall(SessionCore& session, std::stop_token cancel) DENDRITE_ACQUIRE(kComputeLock)
      DENDRITE_EXCLUDES(kTreeLock);
  ~ComputeCall() DENDRITE_RELEASE();
  ComputeCall(const ComputeCall&) = delete;
  ComputeCall& operator=(const ComputeCall&) = delete;

  /// Why no further step may run, or kRunning.
  Finish may_step() const DENDRITE_EXCLUDES(kTreeLock);
  double elapsed_ms() const;
  /// One engine step for these requests; `slack` is for optional ones, see StepLimits. The rows
  /// that it computed.
  std::int64_t step(std::span<StepRequest> requests, LogprobSink* sink = nullptr,
                    double slack = 1) DENDRITE_COMPUTES;
  /// What optional rows are let in by: a step of so many rows, with all that its callers wait for,
  /// began then. Nothing where there was no row.
  void record_time(std::int64_t rows, double begin_ms) DENDRITE_EXCLUDES(kTreeLock);
  /// Steps until every request is kServed or kNoRoom, higher priorities first. Returns why it ended
  /// early, or kRunning.
  Finish run(std::span<StepRequest> requests, LogprobSink* sink = nullptr) DENDRITE_COMPUTES;

 private:
  /// Whether nothing is left to compute for the request.
  bool served(const StepRequest& request) const DENDRITE_REQUIRES(kTreeLock);
  Finish limit() const DENDRITE_REQUIRES(kTreeLock);
  void record_branches(std::span<const StepRequest> requests, double took_ms)
      DENDRITE_REQUIRES(kTreeLock);

  SessionCore& session_;
  EngineCore& engine_;
  ComputeLock compute_;
  std::stop_token cancel_;
  std::chrono::steady_clock::time_point begin_;
  bool changing_ = false;   // branches are forked as they grow: a step begun early was for nothing
  bool timed_ = true;       // the last step was made from its beginning to its end
  double last_end_ms_ = 0;  // of the last step: one that was begun early is timed from there
};

/// Sampling parameters with the model's defaults filled in; checked.
SamplerSettings resolve(const DecodeParams& params, const EngineCore& engine);

std::vector<Generation> decode(SessionCore& session, std::span<Branch> branches,
                               const DecodeParams& params, std::span<Branch> ahead);
std::vector<std::vector<Score>> score(SessionCore& session, std::span<Branch> branches,
                                      const std::vector<std::vector<Token>>& continuations,
                                      std::stop_token cancel);
std::vector<std::vector<TokenLogprob>> next_tokens(SessionCore& session,
                                                   std::span<const Branch> branches,
                                                   const ExpandParams& params);
std::vector<std::vector<Branch>> children(SessionCore& session, std::span<const Branch> branches,
                                          std::span<const std::vector<TokenLogprob>> tokens);

}  // namespace dendrite
