#include "engine/branches/event_hub.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace dendrite {

void EventHub::emit(Event event) {
  event.sequence = ++sequence_;
  event.time_ns = std::chrono::duration_cast<std::chrono::nanoseconds>(
                      std::chrono::steady_clock::now().time_since_epoch())
                      .count();
  for (const Entry& entry : readers_) {
    if ((entry.kinds & mask_of(event.kind)) == 0) continue;
    try {
      entry.reader(event);
    } catch (...) {  // a reader looks on; what goes wrong there must not stop a step half way
    }
  }
}

std::uint64_t EventHub::add(EventMask kinds, Reader reader) {
  readers_.push_back({++last_id_, kinds, std::move(reader)});
  wanted_ |= kinds;
  return last_id_;
}

EventHub::Reader EventHub::remove(std::uint64_t id) {
  const auto found = std::find_if(readers_.begin(), readers_.end(),
                                  [id](const Entry& entry) { return entry.id == id; });
  if (found == readers_.end()) return {};
  Reader removed = std::move(found->reader);
  readers_.erase(found);
  wanted_ = 0;
  for (const Entry& entry : readers_) wanted_ |= entry.kinds;
  return removed;
}

}  // namespace dendrite
