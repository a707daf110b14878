// Who reads the engine's events, from outside.
#include <utility>

#include "dendrite/engine.h"
#include "engine/branches/engine_core.h"

namespace dendrite {

EventSubscription Engine::on_event(EventMask kinds,
                                   std::function<void(const Event&)> reader) const {
  const TreeLock lock(core_->tree_mutex);
  return {core_, core_->events.add(kinds, std::move(reader))};
}

void EventSubscription::off() {
  const std::uint64_t id = std::exchange(id_, 0);
  const std::shared_ptr<EngineCore> engine = std::exchange(engine_, {}).lock();
  if (id == 0 || engine == nullptr) return;
  EventHub::Reader removed;  // destroyed after the lock
  const TreeLock lock(engine->tree_mutex);
  removed = engine->events.remove(id);
}

}  // namespace dendrite
