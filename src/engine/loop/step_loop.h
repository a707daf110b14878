#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <stop_token>
#include <vector>

#include "engine/calls/call.h"
#include "engine/loop/turn_host.h"

namespace dendrite {

/// The one loop in which an engine computes, and who drives it. All calls of all sessions and
/// threads are in it; each turn is for all of them. It needs no thread of its own: of the threads
/// that wait for a call, one is in front and drives for all, and hands over when its own call has
/// ended (leveldb's writers join like this). Where nobody waits, nothing runs.
class StepLoop {
 public:
  explicit StepLoop(EngineCore& engine) : engine_(engine), turn_(engine) {}
  /// What it turns, once the engine's parts are there.
  std::shared_ptr<Stepper> make_stepper() DENDRITE_REQUIRES(kTreeLock);
  StepHost& host() { return turn_; }
  StepLoop(const StepLoop&) = delete;
  StepLoop& operator=(const StepLoop&) = delete;

  /// The call takes part from the next turn on. `submitted`: nobody waits for it, so its caller's
  /// functions are called by the thread that drives.
  void join(std::shared_ptr<Call> call, bool submitted);
  /// Joins, and waits for its end. Throws what it failed with, or BranchBusy in one of the
  /// caller's functions.
  void run(const std::shared_ptr<Call>& call);

  using Until = std::optional<EngineTime>;
  /// Until the call has ended: true. Until the time has come: false. Drives where nobody does.
  /// Throws BranchBusy in one of the caller's functions.
  bool wait(Call& call, Until until = {});
  /// The same, or until it has taken part in another turn than the `turns`-th.
  bool wait_for_turn(Call& call, std::uint64_t turns, Until until = {});
  /// Nobody has the call's handle any more: it is cancelled, and its functions are called no more.
  void abandon(const std::shared_ptr<Call>& call);
  /// Called once it has ended, or at once. What it throws is ignored.
  void on_done(Call& call, std::function<void()> callback);
  bool has_ended(const Call& call) const;
  std::uint64_t turns(const Call& call) const;
  /// Throws what the call failed with, if it did.
  void rethrow(const Call& call) const;

  /// One turn, in this thread. False: there was nothing to do.
  bool step();
  /// Turns while there is work, else sleeps; until it is told to stop.
  void drive(const std::stop_token& stop);

  /// Nothing runs while this lives: between two turns of calls that go on afterwards.
  class DENDRITE_SCOPED_LOCK Pause {
   public:
    /// `what`: its name; in one of the caller's functions it throws BranchBusy, and waits for the
    /// turn under way where `what` is null.
    Pause(StepLoop& loop, const char* what) DENDRITE_ACQUIRE(kComputeLock)
        DENDRITE_EXCLUDES(kTreeLock);
    ~Pause() DENDRITE_RELEASE();
    Pause(const Pause&) = delete;
    Pause& operator=(const Pause&) = delete;

   private:
    /// Whoever drives makes way.
    struct Announced {
      Announced(StepLoop& loop, const char* what);
      ~Announced();
      StepLoop& loop;
    };
    Announced announced_;
    ComputeLock compute_;
  };

 private:
  using Lock = std::unique_lock<std::mutex>;
  using Calls = std::vector<std::shared_ptr<Call>>;
  /// A thread that waits, and would drive.
  struct Waiter {
    const Call* call = nullptr;  // null: for ever
    bool for_turn = false;       // rather than for its end
    bool asleep = false;
    std::condition_variable woken{};
  };
  /// While it lives, this thread is in one of the caller's functions, without the lock.
  class Hearing {
   public:
    Hearing(StepLoop& loop, Lock& lock) : scope_(loop.engine_.callbacks), lock_(lock) {
      lock_.unlock();
    }
    ~Hearing() { lock_.lock(); }
    Hearing(const Hearing&) = delete;
    Hearing& operator=(const Hearing&) = delete;

   private:
    CallbackThreads::Scope scope_;
    Lock& lock_;
  };
  static constexpr std::uint64_t kToItsEnd = ~std::uint64_t{0};

  bool wait_until(Call& call, std::uint64_t turns, Until until);
  static bool is_over(const Call& call, std::uint64_t turns);
  /// A blocking call of a session with a SessionOptions::poll: who waits for it calls that. (It has
  /// no time until which it is waited for.)
  static bool is_polled(const Call& call);
  void poll(Lock& lock, Call& call);
  bool has_work() const;
  static void sleep(Lock& lock, Waiter& waiter, Until until);
  /// The first of those who sleep drives, if there is something to do and nobody does.
  void wake_driver();
  /// Those who wait for the call; `turns`: only who waits for its next turn.
  void wake(const Call& call, bool turns);

  // --- by the thread that drives
  void drive_turn(Lock& lock);
  void wait_for_callers(Lock& lock);
  /// What the turn threw, if it did: then all of its calls have ended.
  std::exception_ptr run_turn(const Calls& calls, std::size_t in_progress);
  void publish(Lock& lock, const Calls& calls, const std::exception_ptr& error);
  void retire(Lock& lock, const Calls& ended);
  void reap(Lock& lock);
  static void release(Lock& lock, Calls& calls);
  /// Calls the caller's functions, in this thread.
  void hear(Lock& lock, const std::shared_ptr<Call>& call);
  void tell_done(Lock& lock, const Calls& ended);

  EngineCore& engine_;
  TurnHost turn_;  // of the thread that drives

  mutable std::mutex mutex_;  // guards all below and Call::standing; not held in a turn
  Calls calls_;               // in the order in which they came
  std::vector<Waiter*> waiters_;
  bool driven_ = false;          // a thread is in a turn
  bool device_is_busy_ = false;  // with a step that was begun early; of that thread
  int pauses_ = 0;
  std::uint64_t turns_ = 0;
  std::condition_variable resumed_;    // no pause
  std::condition_variable turn_over_;  // for step()
  // Callers that hear, or whose calls ended, with the last turn are waited for a moment.
  std::int64_t expected_ = 0;
  EngineTime turn_end_{};
  std::chrono::duration<double> wait_{};  // from then on, at most
  std::condition_variable came_;          // one of them
};

}  // namespace dendrite
