// Events that wait for a reader with time of its own.
#include <condition_variable>
#include <mutex>
#include <utility>

#include "dendrite/engine.h"
#include "dendrite/error.h"

namespace dendrite {

struct StoredEvent::Lists {
  std::vector<BranchId> ran, waited;
  std::vector<DraftedToken> drafted;
};

StoredEvent::StoredEvent(const Event& event) : Event(event) {
  if (ran.empty() && waited.empty() && drafted.empty()) return;
  lists_ = std::make_shared<const Lists>(Lists{
      {ran.begin(), ran.end()}, {waited.begin(), waited.end()}, {drafted.begin(), drafted.end()}});
  ran = lists_->ran;
  waited = lists_->waited;
  drafted = lists_->drafted;
}

/// Between the thread that causes events, which has the tree lock, and those that take them: its
/// mutex is the innermost of all.
struct EventQueue::Shared {
  explicit Shared(std::size_t room) : capacity(room) {}

  void push(const Event& event) {
    const std::scoped_lock lock(mutex);
    if (events.size() == capacity) {
      ++dropped;
      return;
    }
    events.emplace_back(event);
    if (events.size() == 1) changed.notify_all();
  }
  /// No more will come.
  void end() {
    const std::scoped_lock lock(mutex);
    ended = true;
    changed.notify_all();
  }

  const std::size_t capacity;
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<StoredEvent> events;
  std::uint64_t dropped = 0;
  bool ended = false;
  EventSubscription subscription;
};

EventQueue Engine::events(EventMask kinds, std::size_t capacity) const {
  if (capacity == 0) throw Error("events: capacity is 0; expected at least 1");
  const auto shared = std::make_shared<EventQueue::Shared>(capacity);
  // Ends with the reader, which the engine drops with the subscription or with itself.
  const std::shared_ptr<void> until_dropped(nullptr, [shared](void*) { shared->end(); });
  EventSubscription subscription =
      on_event(kinds, [shared, until_dropped](const Event& event) { shared->push(event); });
  const std::scoped_lock lock(shared->mutex);
  shared->subscription = std::move(subscription);
  return EventQueue(shared);
}

EventQueue& EventQueue::operator=(EventQueue&& other) noexcept {
  std::swap(shared_, other.shared_);
  return *this;
}

EventQueue::~EventQueue() {
  close();
}

std::vector<StoredEvent> EventQueue::take() {
  if (shared_ == nullptr) return {};
  const std::scoped_lock lock(shared_->mutex);
  return std::exchange(shared_->events, {});
}

std::vector<StoredEvent> EventQueue::wait_for(std::chrono::nanoseconds timeout) {
  if (shared_ == nullptr) return {};
  std::unique_lock lock(shared_->mutex);
  shared_->changed.wait_for(lock, timeout,
                            [this] { return !shared_->events.empty() || shared_->ended; });
  return std::exchange(shared_->events, {});
}

std::uint64_t EventQueue::dropped() const {
  if (shared_ == nullptr) return 0;
  const std::scoped_lock lock(shared_->mutex);
  return shared_->dropped;
}

bool EventQueue::closed() const {
  if (shared_ == nullptr) return true;
  const std::scoped_lock lock(shared_->mutex);
  return shared_->ended;
}

void EventQueue::close() {
  if (shared_ == nullptr) return;
  EventSubscription ending;  // without the mutex: it waits for the engine's lock
  const std::scoped_lock lock(shared_->mutex);
  ending = std::move(shared_->subscription);
}

}  // namespace dendrite
