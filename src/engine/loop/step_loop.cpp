#include "engine/loop/step_loop.h"

#include <algorithm>

#include "dendrite/error.h"
#include "engine/branches/engine_core.h"
#include "step/stepper.h"

namespace dendrite {

std::shared_ptr<Stepper> StepLoop::make_stepper() {
  return std::make_shared<Stepper>(
      Stepper::Parts{*engine_.backend, *engine_.model, engine_.stores(), *engine_.tree,
                     engine_.memories(), engine_.kv_debug.get(), turn_, engine_.tree_mutex,
                     engine_.vocab(), engine_.reader(), engine_.moves_a_step});
}

// --- calls and those who wait for them

void StepLoop::join(std::shared_ptr<Call> call, bool submitted) {
  const Lock lock(mutex_);
  call->standing.submitted = submitted;
  calls_.push_back(std::move(call));
  --expected_;
  came_.notify_all();
  wake_driver();
}

void StepLoop::run(const std::shared_ptr<Call>& call) {
  join(call, false);
  wait(*call);
  rethrow(*call);
}

bool StepLoop::wait(Call& call, Until until) {
  return wait_until(call, kToItsEnd, until);
}

bool StepLoop::wait_for_turn(Call& call, std::uint64_t turns, Until until) {
  return wait_until(call, turns, until);
}

bool StepLoop::is_over(const Call& call, std::uint64_t turns) {
  return call.standing.ended || (turns != kToItsEnd && call.standing.turns != turns);
}

bool StepLoop::wait_until(Call& call, std::uint64_t turns, Until until) {
  if (const Lock lock(mutex_); is_over(call, turns)) return true;  // in a callback, too
  engine_.callbacks.refuse_wait("wait");
  Lock lock(mutex_);
  Waiter me{.call = &call, .for_turn = turns != kToItsEnd};
  waiters_.push_back(&me);
  PollTimes& polls = call.session().polls;
  Until poll_at = is_polled(call) ? polls.due() : Until();
  const auto has_come = [](Until time) {
    return time && std::chrono::steady_clock::now() >= *time;
  };
  while (!is_over(call, turns) && !has_come(until)) {
    if (call.standing.due && !call.standing.submitted) {
      hear(lock, call.shared_from_this());
    } else if (has_come(poll_at)) {
      poll(lock, call);
      poll_at = polls.due();
    } else if (!driven_ && has_work()) {
      drive_turn(lock);
    } else {
      sleep(lock, me, poll_at ? poll_at : until);
    }
  }
  std::erase(waiters_, &me);
  wake_driver();
  return is_over(call, turns);
}

bool StepLoop::is_polled(const Call& call) {
  return !call.standing.submitted && call.session().options.poll;
}

/// The call may take part in turns meanwhile: only what is safe then is done to it.
void StepLoop::poll(Lock& lock, Call& call) {
  wake_driver();
  std::exception_ptr error;
  {
    const Hearing hearing(*this, lock);
    try {
      if (!call.session().options.poll()) call.cancel();
    } catch (...) {
      error = std::current_exception();
      call.cancel();
    }
  }
  if (error && !call.standing.error) call.standing.error = error;
  call.session().polls.have_polled();
}

void StepLoop::abandon(const std::shared_ptr<Call>& call) {
  call->cancel();
  std::function<void()> gone;  // after the lock: what it holds may be another handle
  Lock lock(mutex_);
  call->standing.abandoned = true;
  gone = std::exchange(call->standing.on_done, {});
  const bool ended = call->standing.ended;
  if (!driven_) reap(lock);
  lock.unlock();
  if (ended) call->drop_result();
}

void StepLoop::on_done(Call& call, std::function<void()> callback) {
  Lock lock(mutex_);
  std::swap(call.standing.on_done, callback);
  if (call.standing.ended) tell_done(lock, {call.shared_from_this()});
}

bool StepLoop::has_ended(const Call& call) const {
  const Lock lock(mutex_);
  return call.standing.ended;
}

std::uint64_t StepLoop::turns(const Call& call) const {
  const Lock lock(mutex_);
  return call.standing.turns;
}

void StepLoop::rethrow(const Call& call) const {
  std::exception_ptr error;
  {
    const Lock lock(mutex_);
    error = call.standing.error;
  }
  if (error) std::rethrow_exception(error);
}

// --- who drives

bool StepLoop::has_work() const {
  if (engine_.any_behind) return true;
  return std::ranges::any_of(calls_,
                             [](const std::shared_ptr<Call>& call) { return !call->standing.due; });
}

void StepLoop::sleep(Lock& lock, Waiter& waiter, Until until) {
  waiter.asleep = true;
  if (until) {
    waiter.woken.wait_until(lock, *until);
  } else {
    waiter.woken.wait(lock);
  }
  waiter.asleep = false;
}

void StepLoop::wake_driver() {
  if (driven_ || !has_work()) return;
  const auto sleeps = [](const Waiter* waiter) { return waiter->asleep; };
  const auto for_ever = [](const Waiter* waiter) { return waiter->asleep && !waiter->call; };
  auto next = std::ranges::find_if(waiters_, for_ever);
  if (next == waiters_.end()) next = std::ranges::find_if(waiters_, sleeps);
  if (next == waiters_.end()) return;  // all are awake, and will look for themselves
  (*next)->asleep = false;
  (*next)->woken.notify_one();
}

void StepLoop::wake(const Call& call, bool turns) {
  for (Waiter* waiter : waiters_) {
    if (waiter->call == &call && (!turns || waiter->for_turn)) waiter->woken.notify_one();
  }
}

bool StepLoop::step() {
  engine_.callbacks.refuse_wait("step");
  Lock lock(mutex_);
  const std::uint64_t before = turns_;
  turn_over_.wait(lock, [&] { return !driven_ || turns_ != before; });
  if (turns_ != before) return true;  // another thread has made one
  if (!has_work()) return false;
  drive_turn(lock);
  wake_driver();
  return true;
}

void StepLoop::drive(const std::stop_token& stop) {
  Waiter me;
  const std::stop_callback wake_up(stop, [&] {
    const Lock lock(mutex_);
    me.woken.notify_one();
  });
  Lock lock(mutex_);
  waiters_.push_back(&me);
  while (!stop.stop_requested()) {
    if (!driven_ && has_work()) {
      drive_turn(lock);
    } else {
      sleep(lock, me, {});
    }
  }
  std::erase(waiters_, &me);
  wake_driver();
}

StepLoop::Pause::Announced::Announced(StepLoop& of, const char* what) : loop(of) {
  if (what != nullptr) loop.engine_.callbacks.refuse_wait(what);
  const Lock lock(loop.mutex_);
  ++loop.pauses_;
}

StepLoop::Pause::Announced::~Announced() {
  const Lock lock(loop.mutex_);
  if (--loop.pauses_ == 0) loop.resumed_.notify_all();
}

StepLoop::Pause::Pause(StepLoop& loop, const char* what)
    : announced_(loop, what), compute_(loop.engine_.compute) {
  loop.turn_.drop_begun();
}

StepLoop::Pause::~Pause() = default;

}  // namespace dendrite
