#pragma once

#include <cstdint>
#include <span>

#include "engine/session_core.h"

// What happened, told to the readers of the engine's event stream (EventHub). It costs one test of
// a mask where nobody listens.
namespace dendrite {

namespace detail {
void emit_prefill(const BranchState& branch, std::int64_t reused) DENDRITE_REQUIRES(kTreeLock);
void emit_fork(const BranchState& child) DENDRITE_REQUIRES(kTreeLock);
void emit_prune(const BranchState& branch, std::int64_t length, std::int64_t pages_before)
    DENDRITE_REQUIRES(kTreeLock);
void emit_finish(const BranchState& branch, std::int64_t tokens, double ms)
    DENDRITE_REQUIRES(kTreeLock);
void emit_planned(EngineCore& engine, std::span<const StepRequest> requests)
    DENDRITE_REQUIRES(kComputeLock, kTreeLock);
void emit_step(const SessionCore& session, std::span<const StepRequest> requests,
               const StepReport& report, double ms) DENDRITE_REQUIRES(kTreeLock);
void emit_snapshot(const SessionCore& session, EventKind kind, std::int64_t branches,
                   std::int64_t bytes, double ms) DENDRITE_REQUIRES(kTreeLock);
void emit_call_ended(const SessionCore& session, Finish finish, double ms)
    DENDRITE_REQUIRES(kTreeLock);
void emit_forget(EngineCore& engine, std::int64_t pages_before) DENDRITE_REQUIRES(kTreeLock);
void emit_evict(const BranchState& branch, bool running, std::int64_t tokens,
                std::int64_t pages_before) DENDRITE_REQUIRES(kTreeLock);
}  // namespace detail

inline void tell_prefill(const BranchState& branch, std::int64_t reused)
    DENDRITE_REQUIRES(kTreeLock) {
  if (branch.session->engine->events.wants(EventKind::kPrefill)) [[unlikely]] {
    detail::emit_prefill(branch, reused);
  }
}

inline void tell_fork(const BranchState& child) DENDRITE_REQUIRES(kTreeLock) {
  if (child.session->engine->events.wants(EventKind::kFork)) [[unlikely]]
    detail::emit_fork(child);
}

/// After the drop; `length` and the pool's used pages from before it.
inline void tell_prune(const BranchState& branch, std::int64_t length, std::int64_t pages_before)
    DENDRITE_REQUIRES(kTreeLock) {
  if (branch.session->engine->events.wants(EventKind::kPrune)) [[unlikely]] {
    detail::emit_prune(branch, length, pages_before);
  }
}

/// A call is over for the branch, which says in `finish` how.
inline void tell_finish(const BranchState& branch, std::int64_t tokens, double ms)
    DENDRITE_REQUIRES(kTreeLock) {
  if (branch.session->engine->events.wants(EventKind::kFinish)) [[unlikely]] {
    detail::emit_finish(branch, tokens, ms);
  }
}

/// A step has been planned: who got copies of shared pages, who got no room, and what is computed
/// again.
inline void tell_planned(EngineCore& engine, std::span<const StepRequest> requests)
    DENDRITE_REQUIRES(kComputeLock, kTreeLock) {
  if (engine.events.wants_any(mask_of(EventKind::kCopyOnWrite, EventKind::kNoRoom,
                                      EventKind::kRegenerate))) [[unlikely]] {
    detail::emit_planned(engine, requests);
  }
}

inline void tell_step(const SessionCore& session, std::span<const StepRequest> requests,
                      const StepReport& report, double ms) DENDRITE_REQUIRES(kTreeLock) {
  if (session.engine->events.wants(EventKind::kStep)) [[unlikely]] {
    detail::emit_step(session, requests, report, ms);
  }
}

/// A budget or the caller ended a call (kBudget, kCancelled); `ms`: since it began.
inline void tell_call_ended(const SessionCore& session, Finish finish, double ms)
    DENDRITE_REQUIRES(kTreeLock) {
  if (session.engine->events.wants_any(mask_of(EventKind::kBudget, EventKind::kCancel)))
      [[unlikely]] {
    detail::emit_call_ended(session, finish, ms);
  }
}

/// A file was written (kSave) or read (kRestore).
inline void tell_snapshot(const SessionCore& session, EventKind kind, std::int64_t branches,
                          std::int64_t bytes, double ms) DENDRITE_REQUIRES(kTreeLock) {
  if (session.engine->events.wants(kind)) [[unlikely]] {
    detail::emit_snapshot(session, kind, branches, bytes, ms);
  }
}

/// The prefix index has forgotten prompts; the pool's used pages from before.
inline void tell_forget(EngineCore& engine, std::int64_t pages_before)
    DENDRITE_REQUIRES(kTreeLock) {
  if (engine.events.wants(EventKind::kForget)) [[unlikely]] {
    detail::emit_forget(engine, pages_before);
  }
}

/// A branch has lost K and V of `tokens` positions; the pool's used pages from before. `running`:
/// it takes part in the very step.
inline void tell_evict(const BranchState& branch, bool running, std::int64_t tokens,
                       std::int64_t pages_before) DENDRITE_REQUIRES(kTreeLock) {
  if (branch.session->engine->events.wants_any(mask_of(EventKind::kEvict, EventKind::kPreempt)))
      [[unlikely]] {
    detail::emit_evict(branch, running, tokens, pages_before);
  }
}

}  // namespace dendrite
