#include "server/admission.h"

#include <algorithm>
namespace dendrite::server {

std::int64_t Admission::now() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

bool Admission::has_room(const Admitted& turn) const {
  return choices_ == 0 || choices_ + turn.choices() <= options_.max_running;
}

bool Admission::enter(const std::shared_ptr<Admitted>& turn) {
  const std::lock_guard lock(mutex_);
  if (closed_) throw unavailable("shutting_down", "the server is shutting down");
  int& of_key = choices_of_key_[turn->caller().key];
  const int most = options_.max_running_of_key;
  if (most > 0 && of_key + turn->choices() > most) {
    throw Fault(429, "rate_limit_error", "rate_limit_exceeded", "",
                "this key has " + std::to_string(of_key) + " answers under way; at most " +
                    std::to_string(most) + " are made at a time");
  }
  const bool now = waiting_.empty() && has_room(*turn);
  if (!now && std::ssize(waiting_) >= options_.max_queued) {
    throw unavailable("server_overloaded", "too many requests wait already");
  }
  of_key += turn->choices();
  if (now) {
    if (choices_ == 0) progress();
    choices_ += turn->choices();
    running_.insert(turn);
  } else {
    const auto place = std::ranges::find_if(
        waiting_, [&](const auto& other) { return other->priority() < turn->priority(); });
    waiting_.insert(place, turn);
  }
  metrics_.running = static_cast<int>(running_.size());
  metrics_.waiting = static_cast<int>(waiting_.size());
  return now;
}

void Admission::leave(const std::shared_ptr<Admitted>& turn) {
  std::vector<std::shared_ptr<Admitted>> next;
  {
    const std::lock_guard lock(mutex_);
    const bool ran = running_.erase(turn) > 0;
    if (!ran && std::erase(waiting_, turn) == 0) return;
    if (ran) choices_ -= turn->choices();
    choices_of_key_[turn->caller().key] -= turn->choices();
    while (!closed_ && !waiting_.empty() && has_room(*waiting_.front())) {
      next.push_back(waiting_.front());
      waiting_.pop_front();
      choices_ += next.back()->choices();
      running_.insert(next.back());
    }
    metrics_.running = static_cast<int>(running_.size());
    metrics_.waiting = static_cast<int>(waiting_.size());
  }
  for (const auto& each : next) each->run();
}

void Admission::refuse() {
  std::vector<std::shared_ptr<Admitted>> all;
  {
    const std::lock_guard lock(mutex_);
    closed_ = true;
    all.assign(waiting_.begin(), waiting_.end());
  }
  fail(all);
}

void Admission::close() {
  refuse();
  std::vector<std::shared_ptr<Admitted>> all;
  {
    const std::lock_guard lock(mutex_);
    all.assign(running_.begin(), running_.end());
  }
  fail(all);
}

void Admission::fail(const std::vector<std::shared_ptr<Admitted>>& turns) {
  for (const auto& each : turns) {
    each->fail(unavailable("shutting_down", "the server is shutting down"));
  }
}

bool Admission::empty() const {
  const std::lock_guard lock(mutex_);
  return running_.empty() && waiting_.empty();
}

bool Admission::is_stuck(std::chrono::seconds time) const {
  const std::lock_guard lock(mutex_);
  return !running_.empty() && now() - progress_ > time.count();
}

}  // namespace dendrite::server
