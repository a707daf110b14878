// What the thread that drives does: a turn for all calls, and what follows from it.
#include <algorithm>
#include <utility>

#include "engine/branches/engine_core.h"
#include "engine/loop/step_loop.h"

namespace dendrite {
namespace {

/// Callers whose functions are due, or whose calls have just ended, are in the next turn if it does
/// not begin before they come. They are waited for at most for this part of a turn, if all are
/// missing, and for less the fewer they are; but for all of it while the device is busy anyway.
constexpr double kWaitedPart = 0.5;
constexpr std::chrono::duration<double> kLongestWait = std::chrono::milliseconds(5);

}  // namespace

void StepLoop::drive_turn(Lock& lock) {
  driven_ = true;
  wait_for_callers(lock);
  resumed_.wait(lock, [&] { return pauses_ == 0; });
  Calls calls;
  std::ranges::copy_if(calls_, std::back_inserter(calls),
                       [](const std::shared_ptr<Call>& call) { return !call->standing.due; });
  const std::size_t in_progress = calls_.size();
  lock.unlock();
  const auto begin = std::chrono::steady_clock::now();
  const std::exception_ptr error = run_turn(calls, in_progress);
  const auto end = std::chrono::steady_clock::now();
  lock.lock();
  turn_end_ = end;
  wait_ = std::min<std::chrono::duration<double>>(kWaitedPart * (end - begin), kLongestWait);
  publish(lock, calls, error);
  reap(lock);
  // As of now: while one is heard, another thread may make a turn, and hear those due after that.
  Calls due;
  std::ranges::copy_if(calls, std::back_inserter(due), [](const std::shared_ptr<Call>& call) {
    return call->standing.due && call->standing.submitted;
  });
  driven_ = false;
  ++turns_;
  turn_over_.notify_all();
  for (const std::shared_ptr<Call>& call : due) hear(lock, call);
  due.clear();
  release(lock, calls);
}

void StepLoop::wait_for_callers(Lock& lock) {
  for (std::int64_t missing = expected_; missing > 0 && expected_ > 0; missing = expected_) {
    const double all = static_cast<double>(missing + std::ssize(calls_));
    const double part = device_is_busy_ ? 1 : static_cast<double>(missing) / all;
    const auto until = turn_end_ + std::chrono::duration_cast<EngineTime::duration>(part * wait_);
    if (!came_.wait_until(lock, until, [&] { return expected_ < missing; })) break;
  }
  expected_ = 0;
}

std::exception_ptr StepLoop::run_turn(const Calls& calls, std::size_t in_progress) {
  std::vector<Call*> running;
  for (const std::shared_ptr<Call>& call : calls) running.push_back(call.get());
  const ComputeLock compute(engine_.compute);
  try {
    turn_.run(running, in_progress);
    device_is_busy_ = turn_.has_begun();
    return {};
  } catch (...) {
    turn_.drop_begun();
    device_is_busy_ = false;
    return std::current_exception();
  }
}

/// Where the calls stand after the turn, for who waits.
void StepLoop::publish(Lock& lock, const Calls& calls, const std::exception_ptr& error) {
  Calls ended;
  for (const std::shared_ptr<Call>& call : calls) {
    Call::Standing& standing = call->standing;
    ++standing.turns;
    standing.due = !error && call->is_due();
    if (error && !standing.error) standing.error = error;
    const bool over = error || (call->has_ended() && !standing.due);
    if (over) ended.push_back(call);
    if (!standing.submitted && (over || standing.due)) ++expected_;
  }
  retire(lock, ended);
  for (const std::shared_ptr<Call>& call : calls) wake(*call, !call->standing.due);
}

/// These calls are over: their branches are free before anybody hears of it.
void StepLoop::retire(Lock& lock, const Calls& ended) {
  if (ended.empty()) return;
  std::erase_if(calls_, [&](const std::shared_ptr<Call>& call) {
    return std::ranges::find(ended, call) != ended.end();
  });
  const bool last = calls_.empty();
  lock.unlock();
  if (last) {
    const ComputeLock compute(engine_.compute);
    turn_.drop_begun();
  }
  for (const std::shared_ptr<Call>& call : ended) call->close();
  lock.lock();
  for (const std::shared_ptr<Call>& call : ended) {
    call->standing.ended = true;
    wake(*call, false);
  }
  tell_done(lock, ended);
}

/// Calls that nobody will ask for, where none of them is in a turn.
void StepLoop::reap(Lock& lock) {
  Calls gone;
  std::ranges::copy_if(calls_, std::back_inserter(gone), [](const std::shared_ptr<Call>& call) {
    return call->standing.abandoned && !call->standing.due;
  });
  if (gone.empty()) return;
  retire(lock, gone);
  release(lock, gone);
}

/// What a call owns may need locks to go. (Who drives keeps the engine alive by itself.)
void StepLoop::release(Lock& lock, Calls& calls) {
  lock.unlock();
  calls.clear();
  lock.lock();
}

void StepLoop::hear(Lock& lock, const std::shared_ptr<Call>& call) {
  wake_driver();  // however short the function was so far, this time it may wait for another call
  if (call->standing.error) {  // poll's: nothing more is told
    call->fail();
  } else {
    std::exception_ptr error;
    {
      const Hearing hearing(*this, lock);
      try {
        call->hear();
      } catch (...) {
        error = std::current_exception();
        call->fail();
      }
    }
    call->standing.error = error;
  }
  call->standing.due = false;
  if (!call->standing.submitted) {
    --expected_;
    came_.notify_all();
  }
  if (call->has_ended()) retire(lock, {call});
  if (!driven_) reap(lock);
}

/// All are taken before the lock goes: a handle may be dropped as soon as its call has ended.
void StepLoop::tell_done(Lock& lock, const Calls& ended) {
  std::vector<std::function<void()>> callbacks;
  for (const std::shared_ptr<Call>& call : ended) {
    if (!call->standing.on_done) continue;
    callbacks.push_back(std::exchange(call->standing.on_done, {}));
  }
  if (callbacks.empty()) return;
  const Hearing hearing(*this, lock);
  for (const std::function<void()>& callback : callbacks) {
    try {
      callback();
    } catch (...) {  // nobody is there to whom it could go
    }
  }
  callbacks.clear();
}

}  // namespace dendrite
