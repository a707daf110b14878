#include "engine/branches/callback_threads.h"

#include <algorithm>
#include <string>

#include "dendrite/error.h"

namespace dendrite {

CallbackThreads::Scope::Scope(CallbackThreads& threads) : threads_(threads) {
  const std::lock_guard lock(threads_.mutex_);
  threads_.inside_.push_back(std::this_thread::get_id());
}

CallbackThreads::Scope::~Scope() {
  const std::lock_guard lock(threads_.mutex_);
  threads_.inside_.erase(std::ranges::find(threads_.inside_, std::this_thread::get_id()));
}

void CallbackThreads::refuse_wait(const char* what) const {
  const std::lock_guard lock(mutex_);
  if (std::ranges::find(inside_, std::this_thread::get_id()) == inside_.end()) return;
  throw BranchBusy(
      std::string(what) +
      ": called from a callback (on_token, on_step, enough, on_logits, poll, on_done), which "
      "must not wait for a call; expected one that is submitted there, by "
      "submit_decode and its like");
}

}  // namespace dendrite
