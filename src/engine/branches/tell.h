#pragma once

#include <cstdint>
#include <vector>

#include "engine/branches/session_core.h"
#include "step/request.h"

// What happened, told to the readers of the engine's event stream (EventHub). It costs one test of
// a mask where nobody listens.
namespace dendrite {

/// A step as one of its sessions sees it.
struct SessionStep {
  std::int64_t rows = 0;
  std::int64_t redundant_rows = 0;
  std::int64_t copies = 0;
  std::int64_t pages = 0;  // acquired by all
  double ms = 0;
  std::vector<BranchId> ran{};
  std::vector<BranchId> waited{};  // for rows or pages
};

/// A draft that a step computed, after the walk.
struct ComputedDraft {
  const BranchState* branch = nullptr;
  Speculate speculate = Speculate::kOff;
  std::int64_t accepted = 0;
  std::span<const DraftedToken> tokens{};
};

namespace detail {
void emit_prefill(const BranchState& branch, std::int64_t reused) DENDRITE_REQUIRES(kTreeLock);
void emit_compose(const BranchState& branch, double ms, double kl) DENDRITE_REQUIRES(kTreeLock);
void emit_chunk(const BranchState& branch, std::int64_t tokens, double ms)
    DENDRITE_REQUIRES(kTreeLock);
void emit_pressure(EngineCore& engine, Pressure level) DENDRITE_REQUIRES(kTreeLock);
void emit_reject(const BranchState& branch, const KvShortage& shortage)
    DENDRITE_REQUIRES(kTreeLock);
void emit_call(const SessionCore& session, const CallRecord& call) DENDRITE_REQUIRES(kTreeLock);
void emit_fork(const BranchState& child) DENDRITE_REQUIRES(kTreeLock);
void emit_prune(const BranchState& branch, std::int64_t length, std::int64_t pages_before)
    DENDRITE_REQUIRES(kTreeLock);
void emit_finish(const BranchState& branch, std::int64_t tokens, double ms)
    DENDRITE_REQUIRES(kTreeLock);
void emit_planned(const BranchState& branch, const StepOutcome& outcome)
    DENDRITE_REQUIRES(kTreeLock);
void emit_step(const SessionCore& session, SessionStep& step) DENDRITE_REQUIRES(kTreeLock);
void emit_draft(const ComputedDraft& draft) DENDRITE_REQUIRES(kTreeLock);
void emit_snapshot(const SessionCore& session, EventKind kind, std::int64_t branches,
                   std::int64_t bytes, double ms) DENDRITE_REQUIRES(kTreeLock);
void emit_call_ended(const SessionCore& session, Finish finish, double ms)
    DENDRITE_REQUIRES(kTreeLock);
void emit_forget(EngineCore& engine, std::int64_t pages_before) DENDRITE_REQUIRES(kTreeLock);
void emit_preempt(const BranchState& branch) DENDRITE_REQUIRES(kTreeLock);
void emit_evict(const BranchState& branch, bool running, std::int64_t tokens,
                std::int64_t pages_before) DENDRITE_REQUIRES(kTreeLock);
}  // namespace detail

inline void tell_prefill(const BranchState& branch, std::int64_t reused)
    DENDRITE_REQUIRES(kTreeLock) {
  if (branch.session->engine->events.wants(EventKind::kPrefill)) [[unlikely]] {
    detail::emit_prefill(branch, reused);
  }
}

/// A composition is over, which took `ms`; or took that to find its error.
inline void tell_compose(const BranchState& branch, double ms, double kl = 0)
    DENDRITE_REQUIRES(kTreeLock) {
  if (branch.session->engine->events.wants(EventKind::kCompose)) [[unlikely]] {
    detail::emit_compose(branch, ms, kl);
  }
}

/// A chunk of so many tokens was computed, on that branch.
inline void tell_chunk(const BranchState& branch, std::int64_t tokens, double ms)
    DENDRITE_REQUIRES(kTreeLock) {
  if (branch.session->engine->events.wants(EventKind::kChunk)) [[unlikely]] {
    detail::emit_chunk(branch, tokens, ms);
  }
}

/// Pages are taken from what is remembered (kSoft), or from branches (kHard).
inline void tell_pressure(EngineCore& engine, Pressure level) DENDRITE_REQUIRES(kTreeLock) {
  if (engine.events.wants(EventKind::kPressure)) [[unlikely]]
    detail::emit_pressure(engine, level);
}

/// There will never be pages enough for the branch (Pressure::kReject).
inline void tell_reject(const BranchState& branch, const KvShortage& shortage)
    DENDRITE_REQUIRES(kTreeLock) {
  if (branch.session->engine->events.wants(EventKind::kPressure)) [[unlikely]]
    detail::emit_reject(branch, shortage);
}

inline void tell_call(const SessionCore& session, const CallRecord& call)
    DENDRITE_REQUIRES(kTreeLock) {
  if (session.engine->events.wants(EventKind::kCall)) [[unlikely]]
    detail::emit_call(session, call);
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

/// A step has been planned: whether the branch got pages, copies of shared ones, or no room, and
/// what of it is computed again.
inline void tell_planned(const BranchState& branch, const StepOutcome& outcome)
    DENDRITE_REQUIRES(kTreeLock) {
  if (branch.session->engine->events.wants_any(mask_of(EventKind::kCopyOnWrite, EventKind::kNoRoom,
                                                       EventKind::kRegenerate,
                                                       EventKind::kAllocate))) [[unlikely]] {
    detail::emit_planned(branch, outcome);
  }
}

inline void tell_step(const SessionCore& session, SessionStep& step) DENDRITE_REQUIRES(kTreeLock) {
  if (session.engine->events.wants(EventKind::kStep)) [[unlikely]]
    detail::emit_step(session, step);
}

inline bool wants_drafts(const EngineCore& engine) DENDRITE_REQUIRES(kTreeLock) {
  return engine.events.wants(EventKind::kDraft);
}

/// Requires: wants_drafts().
inline void tell_draft(const ComputedDraft& draft) DENDRITE_REQUIRES(kTreeLock) {
  detail::emit_draft(draft);
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

/// A branch that took part in steps waits outside now.
inline void tell_preempt(const BranchState& branch) DENDRITE_REQUIRES(kTreeLock) {
  if (branch.session->engine->events.wants(EventKind::kPreempt)) [[unlikely]]
    detail::emit_preempt(branch);
}

}  // namespace dendrite
