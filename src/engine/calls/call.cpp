#include "engine/calls/call.h"

#include <algorithm>
#include <utility>

#include "dendrite/error.h"
#include "engine/branches/tell.h"

namespace dendrite {

Call::Call(SessionCore& session, std::stop_token cancel)
    : session_(session.shared_from_this()), engine_(*session.engine), cancel_(std::move(cancel)) {
  const TreeLock lock(engine_.tree_mutex);
  session.begin_call();
}

void Call::leave() {
  if (std::exchange(left_, true)) return;
  std::shared_ptr<SessionCore> last;  // released after the lock, which it may own
  const TreeLock lock(engine_.tree_mutex);
  session_->end_call();
  for (BranchState* branch : held_) {
    branch->outside = false;
    if (--branch->calls == 0 && branch->orphaned) session_->drop(branch);
  }
  held_.clear();
  if (session_->stats.branches_live == 0) last = std::move(session_->self);
}

void Call::close() {
  {
    const TreeLock lock(engine_.tree_mutex);
    record_.kind = kind();
    record_.ms = elapsed_ms();
    if (!has_run_) record_.queued_ms = record_.ms;
    if (!ended_ || failed_) note_finish(Finish::kCancelled);
    engine_.counts.calls.add(record_);
    tell_call(*session_, record_);
  }
  leave();
}

void Call::note_run(std::int64_t rows) {
  record_.rows += rows;
  if (!std::exchange(has_run_, true)) record_.queued_ms = elapsed_ms();
}

void Call::note_token() {
  if (record_.tokens++ > 0) return;
  record_.first_token_ms = elapsed_ms();
  if (!std::exchange(has_run_, true)) record_.queued_ms = record_.first_token_ms;
}

void Call::note_finish(Finish finish) {
  const auto was_cut = [](Finish one) {
    return one == Finish::kCancelled || one == Finish::kBudget;
  };
  if (!was_cut(record_.finish) || was_cut(finish)) record_.finish = finish;
}

double Call::elapsed_ms() const {
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin_;
  return took.count();
}

Finish Call::may_go_on() const {
  const Finish finish = is_cancelled() ? Finish::kCancelled : session_->limit();
  if (finish != Finish::kRunning) tell_call_ended(*session_, finish, elapsed_ms());
  return finish;
}

void Call::check_free(const BranchState& branch, const char* what) {
  if (branch.calls == 0) return;
  throw BranchBusy(std::string(what) + ": the branch is in a call that has not ended");
}

void Call::hold(BranchState& branch) {
  ++branch.calls;
  branch.admitted = 0;
  ++record_.branches;
  held_.push_back(&branch);
}

void Call::hold(ConstBranches branches, const char* what, const char* which) {
  for (std::size_t i = 0; i < branches.size(); ++i) {
    const auto name = [&] {
      return std::string(what) + ": " + which + "branch " + std::to_string(i);
    };
    BranchState* state = state_of(branches[i]);
    if (state == nullptr) throw BranchEmpty(name() + " is empty; expected a live branch");
    if (state->session != session_.get()) throw Error(name() + " belongs to another session");
    if (state->calls > 0 && std::ranges::find(held_, state) != held_.end()) {
      throw Error(name() + " is named twice; expected it once");
    }
    check_free(*state, what);
    hold(*state);
  }
}

void Call::let_go(BranchState& branch) {
  --branch.calls;
  branch.outside = false;
  held_.erase(std::ranges::find(held_, &branch));
}

Wish RequestsCall::wish_for(BranchState& branch, Tip& tip) {
  Wish wish;
  wish.request.tip = &tip;
  wish.request.fresh = true;
  wish.branch = &branch;
  wish.turn.priority = branch.priority;
  return wish;
}

bool RequestsCall::look_for_open() {
  bool open = false;
  for (Want& want : wants_) {
    want.served = want.served || is_served(*engine_.tree, want.wish.request);
    open = open || !(want.served || want.no_room);
  }
  return open;
}

void RequestsCall::ask(std::vector<Wish>& wishes) {
  asked_.clear();
  const bool open = look_for_open();
  const Finish ended = open ? may_go_on() : Finish::kRunning;
  if (!open || ended != Finish::kRunning) {
    over_ = ended;
    return;
  }
  for (std::size_t i = 0; i < wants_.size(); ++i) {
    if (wants_[i].served || wants_[i].no_room) continue;
    asked_.push_back(i);
    wishes.push_back(wants_[i].wish);
  }
}

void RequestsCall::take(std::span<const StepOutcome> outcomes, ReadyLanes& /*ready*/) {
  if (asked_.empty()) return;
  for (std::size_t i = 0; i < asked_.size(); ++i) {
    Want& want = wants_[asked_[i]];
    const StepOutcome& outcome = outcomes[i];
    want.no_room = want.no_room || outcome.no_room;
    want.wish.turn.waited = outcome.ran || outcome.waited ? 0 : want.wish.turn.waited + 1;
    want.wish.request.fresh = want.wish.request.fresh && !outcome.ran;
  }
  if (!look_for_open()) over_ = Finish::kRunning;
}

void RequestsCall::conclude() {
  if (!over_) return;
  finish(*over_);
  note_finish(has_no_room() ? Finish::kBudget : *over_);
  end();
}

bool RequestsCall::has_no_room() const {
  return std::ranges::any_of(wants_, &Want::no_room);
}

Finish RequestsCall::finish_of(std::size_t want, Finish ended) const {
  if (wants_[want].served) return Finish::kRunning;
  return wants_[want].no_room ? Finish::kBudget : ended;
}

}  // namespace dendrite
