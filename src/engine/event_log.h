#pragma once

#include "engine/event_hub.h"

namespace dendrite {

/// Readers for people, switched on by the environment, one line an event on stderr:
///   DENDRITE_LOG_FORK=1       branches made and dropped, copies on write, evictions, pages
///   DENDRITE_LOG_SCHEDULER=1  each step: who ran, who waited, who was evicted or preempted
/// What the library does not do otherwise, it does here: it prints, since it was asked to.
void add_log_readers(EventHub& events);

/// Set, and neither empty nor "0".
bool flag_is_set(const char* variable);

}  // namespace dendrite
