#pragma once

#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "dendrite/pending.h"
#include "engine/calls/call.h"
#include "engine/calls/drafting.h"
#include "engine/calls/lane_sampler.h"

namespace dendrite {

/// A decode call: steps until every branch has finished. Others, ahead of their own call, get a
/// part of the steps that are made.
class DecodeCall final : public Call {
 public:
  /// What becomes of the tokens.
  enum class Tokens {
    kTold,  ///< to the caller's functions
    kKept,  ///< and for take_tokens()
  };
  /// The branches stay their caller's. Throws Error for parameters out of range and as hold() does.
  DecodeCall(SessionCore& session, std::vector<Branch*> branches, const DecodeParams& params,
             Branches ahead, Tokens tokens);
  /// The branches are the call's.
  DecodeCall(SessionCore& session, std::vector<Branch> branches, const DecodeParams& params);

  void ask(std::vector<Wish>& wishes) DENDRITE_REQUIRES(kComputeLock, kTreeLock) override;
  bool wants_drafts() const override;
  void want_drafts(std::vector<DraftWish>& wishes) DENDRITE_COMPUTES override;
  void ask_for_drafts(std::vector<Wish>& wishes) DENDRITE_COMPUTES override;
  void prepare_draft_draws() DENDRITE_COMPUTES override;
  void take(std::span<const StepOutcome> outcomes, ReadyLanes& ready)
      DENDRITE_REQUIRES(kComputeLock, kTreeLock) override;
  void commit() DENDRITE_REQUIRES(kComputeLock, kTreeLock) override;
  void conclude() DENDRITE_COMPUTES override;
  double slack() const override;
  CallKind kind() const override { return CallKind::kDecode; }
  void hear() override;

  // --- for whoever waits; the first two once it has ended
  std::vector<Generation> results();
  std::vector<Branch> release() { return std::move(owned_); }
  void drop_result() override { owned_.clear(); }
  std::span<Branch> branches() { return owned_; }
  /// Since the last time.
  std::vector<StreamToken> take_tokens();

 private:
  /// A token that the caller's function has not heard of.
  struct News {
    BranchId branch = BranchId::kNone;
    StreamToken token;
  };

  void begin(Branches ahead);
  void check_speculation() const;
  void check_params() const;
  BranchState* prepare(const Branch& branch) DENDRITE_REQUIRES(kTreeLock);
  void find_states(Branches branches) DENDRITE_EXCLUDES(kTreeLock);
  void look_at_constraint(Lane& lane);
  void place_lanes() DENDRITE_REQUIRES(kTreeLock);
  bool resume(Lane& lane);

  void look_at_branches() DENDRITE_REQUIRES(kTreeLock);
  void take_ahead() DENDRITE_REQUIRES(kTreeLock);
  bool is_cancelled_alone(const Lane& lane) const;
  bool may_stop() const;
  bool goes_on(const Lane& lane) const;
  void ask_for(Lane& lane, std::vector<Wish>& wishes) DENDRITE_REQUIRES(kTreeLock);

  void go_on(Lane& lane) DENDRITE_COMPUTES;
  void commit_token(Lane& lane) DENDRITE_REQUIRES(kTreeLock);
  void commit(Lane& lane) DENDRITE_REQUIRES(kTreeLock);
  void commit_ahead(Lane& lane) DENDRITE_REQUIRES(kTreeLock);
  void add_token(Lane& lane);
  void conclude(Lane& lane);
  void show(Lane& lane);
  std::int64_t position_limit() const;
  bool at_position_limit(std::int64_t length) const { return length >= position_limit(); }
  void finish(Lane& lane, Finish reason);
  void retire_finished() DENDRITE_COMPUTES;
  void tell(const Lane& lane) DENDRITE_REQUIRES(kTreeLock);
  void settle();

  void tell_step(std::span<const News> news);
  void judge();
  void abandon(std::span<Lane* const> lanes) DENDRITE_EXCLUDES(kTreeLock);
  /// Ended, and not by itself.
  static bool was_cut(const Lane& lane) {
    return lane.out.finish == Finish::kBudget || lane.out.finish == Finish::kCancelled;
  }

  std::vector<Branch> owned_;
  std::vector<Branch*> branches_;
  const DecodeParams params_;
  const LaneSampler sampler_;
  const Matcher start_;  // of the call's own constraint; not valid: it has none
  const bool streams_;
  std::vector<Lane> lanes_;
  std::vector<Lane> ahead_;
  std::vector<Lane*> running_;          // of lanes_
  std::vector<Lane*> drawing_;          // of ahead_
  std::vector<Lane*> asking_;           // whose the wishes of this turn are
  std::vector<Lane*> ready_;            // get their token in this turn
  std::vector<Lane*> unjudged_;         // finished by themselves, and not yet shown to `enough`
  std::unique_ptr<Drafting> drafting_;  // null: the call does not speculate
  bool changing_ = false;  // branches are forked as they grow: a step begun early was for nothing
  std::int64_t step_ = 0;  // that it commits next
  std::vector<News> news_;
  std::mutex stream_mutex_;
  std::vector<StreamToken> stream_;  // guarded by it
};

}  // namespace dendrite
