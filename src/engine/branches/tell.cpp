#include "engine/branches/tell.h"

#include <algorithm>
#include <vector>

namespace dendrite::detail {
namespace {

Event event_of(const EngineCore& engine, EventKind kind) DENDRITE_REQUIRES(kTreeLock) {
  Event event;
  event.kind = kind;
  event.pages_used = engine.tree->pool().used_pages();
  return event;
}

Event event_of(const BranchState& branch, EventKind kind) DENDRITE_REQUIRES(kTreeLock) {
  const EngineCore& engine = *branch.session->engine;
  Event event = event_of(engine, kind);
  event.session = branch.session->number;
  event.branch = branch.id;
  event.parent = branch.parent;
  if (!branch.tip.empty()) event.length = engine.tree->length(branch.tip);
  return event;
}

Event event_of(const SessionCore& session, EventKind kind) DENDRITE_REQUIRES(kTreeLock) {
  Event event = event_of(*session.engine, kind);
  event.session = session.number;
  return event;
}

/// Each branch once: a scoring call has many requests of one.
void keep_once(std::vector<BranchId>& ids) {
  std::sort(ids.begin(), ids.end());
  ids.erase(std::unique(ids.begin(), ids.end()), ids.end());
}

}  // namespace

void emit_prefill(const BranchState& branch, std::int64_t reused) {
  Event event = event_of(branch, EventKind::kPrefill);
  event.tokens = reused;
  branch.session->engine->events.emit(event);
}

void emit_compose(const BranchState& branch, double ms, double kl) {
  Event event = event_of(branch, EventKind::kCompose);
  const Composition report = branch.rare->composition->report(event.length);
  event.kept = report.kept;
  event.moved = report.moved;
  event.repaired = report.repaired;
  event.computed = report.computed;
  event.ms = ms;
  event.kl = kl;
  branch.session->engine->events.emit(event);
}

void emit_chunk(const BranchState& branch, std::int64_t tokens, double ms) {
  Event event = event_of(branch, EventKind::kChunk);
  event.tokens = tokens;
  event.ms = ms;
  branch.session->engine->events.emit(event);
}

void emit_pressure(EngineCore& engine, Pressure level) {
  Event event = event_of(engine, EventKind::kPressure);
  event.level = level;
  engine.events.emit(event);
}

void emit_reject(const BranchState& branch, const KvShortage& shortage) {
  Event event = event_of(branch, EventKind::kPressure);
  event.level = Pressure::kReject;
  event.pages = shortage.pages_needed;
  event.tokens = shortage.kv_tokens_needed();
  branch.session->engine->events.emit(event);
}

void emit_call(const SessionCore& session, const CallRecord& call) {
  Event event = event_of(session, EventKind::kCall);
  event.call = call.kind;
  event.branches = call.branches;
  event.rows = call.rows;
  event.tokens = call.tokens;
  event.queued_ms = call.queued_ms;
  event.first_token_ms = call.first_token_ms;
  event.ms = call.ms;
  if (call.ms > 0) event.tokens_per_second = static_cast<double>(call.tokens) / call.ms * 1e3;
  event.finish = call.finish;
  session.engine->events.emit(event);
}

void emit_fork(const BranchState& child) {
  child.session->engine->events.emit(event_of(child, EventKind::kFork));
}

void emit_prune(const BranchState& branch, std::int64_t length, std::int64_t pages_before) {
  Event event = event_of(branch, EventKind::kPrune);
  event.length = length;
  event.pages = pages_before - event.pages_used;
  branch.session->engine->events.emit(event);
}

void emit_finish(const BranchState& branch, std::int64_t tokens, double ms) {
  Event event = event_of(branch, EventKind::kFinish);
  event.finish = branch.finish;
  event.tokens = tokens;
  event.ms = ms;
  branch.session->engine->events.emit(event);
}

void emit_planned(const BranchState& branch, const StepOutcome& outcome) {
  EventHub& events = branch.session->engine->events;
  if (outcome.pages > 0 && events.wants(EventKind::kAllocate)) {
    Event event = event_of(branch, EventKind::kAllocate);
    event.pages = outcome.pages;
    events.emit(event);
  }
  if (outcome.copies > 0 && events.wants(EventKind::kCopyOnWrite)) {
    Event event = event_of(branch, EventKind::kCopyOnWrite);
    event.copies = outcome.copies;
    event.tokens = outcome.copied_tokens;
    events.emit(event);
  }
  if (outcome.waited && events.wants(EventKind::kNoRoom)) {
    Event event = event_of(branch, EventKind::kNoRoom);
    event.pages = outcome.pages_missing;
    events.emit(event);
  }
  if (outcome.regenerated_rows > 0 && events.wants(EventKind::kRegenerate)) {
    Event event = event_of(branch, EventKind::kRegenerate);
    event.tokens = outcome.regenerated_rows;
    events.emit(event);
  }
}

void emit_evict(const BranchState& branch, bool running, std::int64_t tokens,
                std::int64_t pages_before) {
  EventHub& events = branch.session->engine->events;
  Event event = event_of(branch, EventKind::kEvict);
  event.tokens = tokens;
  event.pages = pages_before - event.pages_used;
  if (events.wants(EventKind::kEvict)) events.emit(event);
  event.kind = EventKind::kPreempt;
  if (running && events.wants(EventKind::kPreempt)) events.emit(event);
}

void emit_preempt(const BranchState& branch) {
  branch.session->engine->events.emit(event_of(branch, EventKind::kPreempt));
}

void emit_step(const SessionCore& session, SessionStep& step) {
  EngineCore& engine = *session.engine;
  keep_once(step.ran);
  keep_once(step.waited);
  Event event = event_of(session, EventKind::kStep);
  event.rows = step.rows;
  event.redundant_rows = step.redundant_rows;
  event.branches = std::ssize(step.ran);
  event.waiting = std::ssize(step.waited);
  event.copies = step.copies;
  event.pages = step.pages;
  event.unique_bytes = engine.counts.unique_bytes;
  event.naive_bytes = engine.counts.naive_bytes;
  event.ms = step.ms;
  event.ran = step.ran;
  event.waited = step.waited;
  engine.events.emit(event);
}

void emit_draft(const ComputedDraft& draft) {
  Event event = event_of(*draft.branch, EventKind::kDraft);
  event.rows = std::ssize(draft.tokens);
  event.tokens = draft.accepted;
  event.speculate = draft.speculate;
  event.drafted = draft.tokens;
  draft.branch->session->engine->events.emit(event);
}

void emit_call_ended(const SessionCore& session, Finish finish, double ms) {
  const EventKind kind = finish == Finish::kCancelled ? EventKind::kCancel : EventKind::kBudget;
  EventHub& events = session.engine->events;
  if (!events.wants(kind)) return;
  Event event = event_of(session, kind);
  event.tokens = session.stats.tokens_computed;
  event.ms = kind == EventKind::kBudget ? session.spent_ms + ms : ms;
  events.emit(event);
}

void emit_snapshot(const SessionCore& session, EventKind kind, std::int64_t branches,
                   std::int64_t bytes, double ms) {
  Event event = event_of(session, kind);
  event.branches = branches;
  event.bytes = bytes;
  event.ms = ms;
  session.engine->events.emit(event);
}

void emit_forget(EngineCore& engine, std::int64_t pages_before) {
  Event event = event_of(engine, EventKind::kForget);
  event.pages = pages_before - event.pages_used;
  if (event.pages > 0) engine.events.emit(event);
}

}  // namespace dendrite::detail
