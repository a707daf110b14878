#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "dendrite/events.h"

namespace dendrite {

/// The engine's event stream and its readers. Everything here requires the tree lock, so the test
/// whether anybody listens is a plain load and a branch that is predicted.
class EventHub {
 public:
  using Reader = std::function<void(const Event&)>;

  bool wants(EventKind kind) const { return wants_any(mask_of(kind)); }
  bool wants_any(EventMask kinds) const { return (wanted_ & kinds) != 0; }
  /// Stamps sequence and time and calls the readers of the kind. Requires: wants(event.kind).
  void emit(Event event);

  /// The reader's id, never 0.
  std::uint64_t add(EventMask kinds, Reader reader);
  /// The reader that was removed: to be destroyed without the lock, for what it owns may need it.
  Reader remove(std::uint64_t id);

  std::uint64_t emitted() const { return sequence_; }

 private:
  struct Entry {
    std::uint64_t id = 0;
    EventMask kinds = 0;
    Reader reader;
  };
  EventMask wanted_ = 0;  // the union of the readers' kinds
  std::vector<Entry> readers_;
  std::uint64_t last_id_ = 0;
  std::uint64_t sequence_ = 0;
};

}  // namespace dendrite
