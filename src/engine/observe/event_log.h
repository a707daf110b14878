#pragma once

#include "engine/branches/event_hub.h"

namespace dendrite {

/// What is in which log; every kind is in one at least.
inline constexpr EventMask kForkEvents =
    mask_of(EventKind::kPrefill, EventKind::kFork, EventKind::kAllocate, EventKind::kCopyOnWrite,
            EventKind::kPrune, EventKind::kForget, EventKind::kEvict, EventKind::kSave,
            EventKind::kRestore, EventKind::kCompose, EventKind::kChunk, EventKind::kPressure);
inline constexpr EventMask kSchedulerEvents =
    mask_of(EventKind::kStep, EventKind::kNoRoom, EventKind::kFinish, EventKind::kEvict,
            EventKind::kRegenerate, EventKind::kPreempt, EventKind::kBudget, EventKind::kCancel,
            EventKind::kDraft, EventKind::kPressure, EventKind::kCall);
static_assert((kForkEvents | kSchedulerEvents) == kAllEvents);

/// Readers for people, switched on by the environment, one line an event on stderr:
///   DENDRITE_LOG_FORK=1       branches made, composed and dropped, pages taken, copied and lost
///   DENDRITE_LOG_SCHEDULER=1  each step: who ran, waited, lost pages; each call
/// What the library does not do otherwise, it does here: it prints, since it was asked to.
void add_log_readers(EventHub& events);

/// Set, and neither empty nor "0".
bool flag_is_set(const char* variable);

}  // namespace dendrite
