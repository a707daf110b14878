#pragma once

#include <chrono>
#include <deque>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "dendrite/session.h"
#include "engine/branches/branch_state.h"
#include "engine/branches/engine_core.h"
#include "engine/branches/internals.h"
#include "engine/branches/poll_times.h"

namespace dendrite {

class DraftProvider;

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
  PollTimes polls;           // guarded by the step loop
  /// Drafts from what its branches have said; null until a call wants that.
  std::unique_ptr<DraftProvider> suffixes DENDRITE_GUARDED_BY(kComputeLock);
  /// Set while branches live: each keeps the tree alive.
  std::shared_ptr<SessionCore> self DENDRITE_GUARDED_BY(kTreeLock);
  std::deque<BranchState> slab DENDRITE_GUARDED_BY(kTreeLock);  // addresses never move
  BranchState* free_list DENDRITE_GUARDED_BY(kTreeLock) = nullptr;
  std::uint64_t next_id DENDRITE_GUARDED_BY(kTreeLock) = 1;
  /// By a hash of the tokens: how often given.
  std::map<std::uint64_t, std::uint64_t> prompts DENDRITE_GUARDED_BY(kTreeLock);
  /// Pages of all live branches, had each its own.
  std::int64_t naive_pages DENDRITE_GUARDED_BY(kTreeLock) = 0;
  double spent_ms DENDRITE_GUARDED_BY(kTreeLock) = 0;          // in calls that have ended
  int calls DENDRITE_GUARDED_BY(kTreeLock) = 0;                // that have not
  EngineTime calls_began DENDRITE_GUARDED_BY(kTreeLock) = {};  // the first of these
  /// Rows that the engine owes it, see Share.
  double row_credit DENDRITE_GUARDED_BY(kTreeLock) = 0;
  std::int64_t ahead_rows DENDRITE_GUARDED_BY(kTreeLock) = 0;  // computed ahead, and not taken over
  Stats stats DENDRITE_GUARDED_BY(kTreeLock);
  /// How long forks took, a call with one reading of the clock before and after.
  struct ForkTime {
    float ns = 0;  // each of them
    std::int32_t forks = 0;
  };
  std::vector<ForkTime> fork_samples DENDRITE_GUARDED_BY(kTreeLock);  // the most recent ones
  std::size_t next_fork_sample DENDRITE_GUARDED_BY(kTreeLock) = 0;
  std::optional<KvShortage> shortage DENDRITE_GUARDED_BY(kTreeLock);

  BranchState* make_branch(const Inherited& inherited) DENDRITE_REQUIRES(kTreeLock);
  Branch fork(BranchState& parent, const ForkOptions& options) DENDRITE_REQUIRES(kTreeLock);
  /// Appends so many to `children`, which has room for them.
  void fork(BranchState& parent, int count, std::vector<Branch>& children)
      DENDRITE_REQUIRES(kTreeLock);
  /// Of Stats: the median of the forks that were timed; 0 before the first.
  double fork_ns() const DENDRITE_REQUIRES(kTreeLock);
  Branch fork_at(BranchState& parent, std::int64_t length, const ForkOptions& options)
      DENDRITE_REQUIRES(kTreeLock);
  /// A fork with one more token, whose log-prob is that.
  Branch child(BranchState& parent, const TokenLogprob& token) DENDRITE_REQUIRES(kTreeLock);
  /// Of a branch in a call: when that has ended.
  void drop(BranchState* state) DENDRITE_REQUIRES(kTreeLock);
  /// Requires another owner of the session: its last branch may be among these.
  void prune(Branches branches) DENDRITE_REQUIRES(kTreeLock);
  void append(BranchState& branch, std::span<const Token> tokens) DENDRITE_REQUIRES(kTreeLock);
  /// To the pages of another tip, whose first `length` tokens are the branch's.
  void move_to(BranchState& branch, const Tip& tip, std::int64_t length)
      DENDRITE_REQUIRES(kTreeLock);
  /// What was drawn ahead for the branch; begun, with `resolve`d settings, if there is nothing.
  Ahead& ahead_of(BranchState& branch, const SamplerSettings& settings, int top)
      DENDRITE_REQUIRES(kTreeLock);
  /// The branch grows by the first token drawn ahead; with the last one its Ahead is gone.
  void take_ahead(BranchState& branch) DENDRITE_REQUIRES(kTreeLock);
  void drop_ahead(BranchState& branch) DENDRITE_REQUIRES(kTreeLock);
  void drop_exact(BranchState& branch) DENDRITE_REQUIRES(kTreeLock);
  /// Rows that count against the budget: drawn ahead, only those taken over.
  std::int64_t spent_tokens() const DENDRITE_REQUIRES(kTreeLock) {
    return stats.tokens_computed - ahead_rows;
  }
  /// A request of the branch's own would have computed its first `tokens` tokens by now.
  void count_independent(BranchState& branch, std::int64_t tokens) DENDRITE_REQUIRES(kTreeLock);
  void record_kv_bytes() DENDRITE_REQUIRES(kTreeLock);
  void record_shortage(const Tip& tip) DENDRITE_REQUIRES(kTreeLock);
  /// Time counts against the budget while any call of the session is in progress.
  void begin_call() DENDRITE_REQUIRES(kTreeLock);
  void end_call() DENDRITE_REQUIRES(kTreeLock);
  double milliseconds_spent() const DENDRITE_REQUIRES(kTreeLock);
  /// kBudget where the budget is spent, else kRunning.
  Finish limit() const DENDRITE_REQUIRES(kTreeLock);

  // The text state of a branch, for whoever holds its handle. Tokenizers that cannot be followed
  // token by token have none.
  /// Makes it known where the branch was cut from a longer one or restored: O(segments), it reads a
  /// few tokens at both ends.
  void find_text(BranchState& branch) const DENDRITE_EXCLUDES(kTreeLock);
  /// Where the branch is in its constraint; not valid where none holds. O(tokens since the matcher
  /// was last looked at). For whoever holds its handle, also while a call goes on with it. Throws
  /// GrammarLimit.
  Matcher find_matcher(const BranchState& branch) const DENDRITE_EXCLUDES(kTreeLock);
  /// The branch's text went on by these tokens.
  void add_text(BranchState& branch, std::span<const Token> tokens) const;
  /// The branch's state. Throws BranchEmpty where it is empty, Error where it is another session's.
  BranchState& require_live(const Branch& branch, const char* what) const;
  /// A branch that is no fork of another, at this tip.
  Branch begin_at(Tip tip, const Inherited& inherited) DENDRITE_REQUIRES(kTreeLock);
  std::uint64_t stream_of_prompt(std::uint64_t tokens_hash) DENDRITE_REQUIRES(kTreeLock);
  /// Of a fork at a branch's first `length` tokens.
  static std::uint64_t stream_of_fork(BranchState& parent, std::uint64_t length,
                                      const ForkOptions& fork_options) DENDRITE_REQUIRES(kTreeLock);
  /// A state that is_ahead, for tokens behind a branch that are nobody's yet.
  BranchState& take_place(const BranchState& branch) DENDRITE_REQUIRES(kTreeLock);
  void drop_place(BranchState& state) DENDRITE_REQUIRES(kTreeLock);

 private:
  BranchState* take_state(const Inherited& inherited) DENDRITE_REQUIRES(kTreeLock);
  void give_state_back(BranchState& state) DENDRITE_REQUIRES(kTreeLock);
  Branch fork_from(const BranchState& parent, Tip tip, std::uint64_t stream)
      DENDRITE_REQUIRES(kTreeLock);
  Branch untimed_fork(BranchState& parent, const ForkOptions& fork_options)
      DENDRITE_REQUIRES(kTreeLock);
  void record_fork_time(std::chrono::steady_clock::time_point begin, int forks)
      DENDRITE_REQUIRES(kTreeLock);
  std::int64_t pages_of(const Tip& tip) const DENDRITE_REQUIRES(kTreeLock);
};

}  // namespace dendrite
