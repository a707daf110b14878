#pragma once

#include <atomic>
#include <chrono>
#include <exception>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "engine/branches/draft_provider.h"
#include "engine/branches/session_core.h"
#include "engine/branches/tell.h"
#include "step/request.h"
#include "step/turns.h"

namespace dendrite {

struct DraftDraw;
struct Lane;

/// What a call wants of the next step, and for whom.
struct Wish {
  StepRequest request;
  BranchState* branch = nullptr;  // on whose account it goes, in statistics and events
  Turn turn{};
  bool may_stop = false;          // the token that it draws may be its last
  Lane* lane = nullptr;           // whose draw it is
  bool is_draft = false;          // rows that count for nobody, unless they are taken
  std::span<DraftDraw> masked{};  // draws after its tokens, which get masks
  /// Tokens that may follow its own, at most; < 0: it does not grow, and is never held back.
  std::int64_t to_come = -1;
  bool outside = false;            // it is no part of this step, see admission.h; then ...
  std::int64_t pages_lacking = 0;  // ... pages for its pending tokens alone
};

/// Lanes of any calls that are to get their token in a turn.
struct ReadyLanes {
  std::vector<Lane*> open;   // with a distribution, or the step's draw
  std::vector<Lane*> drawn;  // by an earlier step, ahead
};

/// A call in progress: a client of the step loop (step_loop.h), which asks it before each step what
/// it wants, and brings it what has come of that. Most of its functions are called in turns, by
/// whichever thread drives, with the compute lock; the caller's own functions are heard in hear(),
/// and while they are due nobody else touches the call.
class Call : public std::enable_shared_from_this<Call> {
 public:
  Call(SessionCore& session, std::stop_token cancel);
  virtual ~Call() { leave(); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  SessionCore& session() const { return *session_; }

  /// Throws BranchBusy where a call changes the branch. `what`: who else would.
  static void check_free(const BranchState& branch, const char* what) DENDRITE_REQUIRES(kTreeLock);

  // --- one turn, part by part: each is run for all calls, before the next one is for any. The tree
  // is locked once for a part of all calls, where it says so.
  /// Appends what it wants of the next step. Nothing: it has all, or it may run no further.
  virtual void ask(std::vector<Wish>& wishes) DENDRITE_REQUIRES(kComputeLock, kTreeLock) = 0;
  /// Whether it speculates. Then: drafts for lanes of this one, ...
  virtual bool wants_drafts() const { return false; }
  virtual void want_drafts(std::vector<DraftWish>& /*wishes*/) DENDRITE_COMPUTES {}
  /// ... and once they are there, wishes for their rows. It is not told what came of those.
  virtual void ask_for_drafts(std::vector<Wish>& /*wishes*/) DENDRITE_COMPUTES {}
  /// The pass is under way, and what drafts draw behind it is to be said: not before, as the device
  /// would wait for that.
  virtual void prepare_draft_draws() DENDRITE_COMPUTES {}
  /// What the step did for what it asked for, in that order. Appends lanes.
  virtual void take(std::span<const StepOutcome> outcomes, ReadyLanes& ready)
      DENDRITE_REQUIRES(kComputeLock, kTreeLock) = 0;
  /// Lanes have their tokens.
  virtual void commit() DENDRITE_REQUIRES(kComputeLock, kTreeLock) {}
  /// What follows from all that, and whether it is over.
  virtual void conclude() DENDRITE_COMPUTES = 0;
  /// How many times longer optional requests may make a step.
  virtual double slack() const { return std::numeric_limits<double>::infinity(); }

  // --- the caller's functions
  /// Whether they are to be called before the next turn; until then the call sits out.
  bool is_due() const { return due_; }
  /// Calls them. Without locks, in the caller's thread, or in the one that drives if nobody waits.
  virtual void hear() {}

  /// Requests of it ran in a step, which computed so many rows for them.
  void note_run(std::int64_t rows);
  virtual CallKind kind() const = 0;

  // --- its end
  bool has_ended() const { return ended_; }
  /// Of one that was in the loop: tells that it is over, and leaves.
  void close() DENDRITE_EXCLUDES(kTreeLock);
  /// Gives its branches back, and its time to its session.
  void leave() DENDRITE_EXCLUDES(kTreeLock);
  /// It takes part in no further step. From any thread.
  void cancel() { cancelled_ = true; }
  bool is_cancelled() const { return cancelled_ || cancel_.stop_requested(); }
  /// False: its result was taken before. For its handle alone.
  bool take_result() { return !std::exchange(taken_, true); }
  /// Its handle is gone, after its end: what is left of the result goes now, and not when whoever
  /// drives forgets the call.
  virtual void drop_result() {}
  /// Its caller's functions are called no more; for one whose function threw.
  void fail() {
    failed_ = true;
    due_ = false;
    cancel();
  }

 protected:
  /// Why it may take part in no further step, or kRunning.
  Finish may_go_on() const DENDRITE_REQUIRES(kTreeLock);
  double elapsed_ms() const;
  /// Until leave(), only this call changes the branch.
  void hold(BranchState& branch) DENDRITE_REQUIRES(kTreeLock);
  /// The same of handles. Throws BranchEmpty, BranchBusy, and Error where one is of another session
  /// or named twice. `what`: the call's name, and `which` of its branches these are.
  void hold(ConstBranches branches, const char* what, const char* which = "")
      DENDRITE_REQUIRES(kTreeLock);
  /// Before leave(): the call does not look at the branch again.
  void let_go(BranchState& branch) DENDRITE_REQUIRES(kTreeLock);

  /// It generated another token.
  void note_token();
  /// One of its branches ended so, or all that it was to do.
  void note_finish(Finish finish);
  void end() { ended_ = true; }
  bool has_failed() const { return failed_; }
  void make_due() { due_ = true; }
  void have_heard() { due_ = false; }

  const std::shared_ptr<SessionCore> session_;
  EngineCore& engine_;

 private:
  std::stop_token cancel_;
  std::atomic<bool> cancelled_ = false;
  bool ended_ = false;
  bool due_ = false;
  bool failed_ = false;
  bool left_ = false;
  bool taken_ = false;
  EngineTime begin_ = std::chrono::steady_clock::now();
  std::vector<BranchState*> held_;
  CallRecord record_;
  bool has_run_ = false;

 public:
  /// How it stands, for who waits. Guarded by the step loop.
  struct Standing {
    bool submitted = false;  // nobody stands behind it: the thread that drives calls its functions
    bool abandoned = false;  // and nobody will ask for it
    bool due = false;
    bool ended = false;
    std::uint64_t turns = 0;  // that it took part in
    std::exception_ptr error{};
    std::function<void()> on_done{};
  };
  Standing standing;
};

/// A call of fixed requests: steps until each has all it wants, or cannot.
class RequestsCall : public Call {
 public:
  using Call::Call;
  void ask(std::vector<Wish>& wishes) DENDRITE_REQUIRES(kComputeLock, kTreeLock) override;
  void take(std::span<const StepOutcome> outcomes, ReadyLanes& ready)
      DENDRITE_REQUIRES(kComputeLock, kTreeLock) override;
  void conclude() DENDRITE_COMPUTES final;

 protected:
  /// The tip's tokens and its distribution, on the branch's account.
  static Wish wish_for(BranchState& branch, Tip& tip) DENDRITE_REQUIRES(kTreeLock);
  /// Before the first turn.
  void want(const Wish& wish) { wants_.push_back({wish, false, false}); }
  /// All have what they want, or `ended` says why not: kBudget, kCancelled, or kRunning. Then there
  /// may be some for which there was no room.
  virtual void finish(Finish ended) DENDRITE_COMPUTES = 0;
  bool has_no_room() const;
  /// Of the want-th one. One that was served may have lost pages to another of the call since.
  Finish finish_of(std::size_t want, Finish ended) const;

 private:
  struct Want {
    Wish wish;
    bool served = false;
    bool no_room = false;
  };
  bool look_for_open() DENDRITE_REQUIRES(kTreeLock);

  std::vector<Want> wants_;
  std::vector<std::size_t> asked_;  // of wants_, in this turn
  std::optional<Finish> over_{};    // it asks no more, for this reason
};

}  // namespace dendrite
