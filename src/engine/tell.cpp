#include "engine/tell.h"

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

void emit_planned(EngineCore& engine, std::span<const StepRequest> requests) {
  for (const StepRequest& request : requests) {
    if (request.branch == nullptr) continue;
    const StepRequest::Account& account = request.account;
    if (account.copies > 0 && engine.events.wants(EventKind::kCopyOnWrite)) {
      Event event = event_of(*request.branch, EventKind::kCopyOnWrite);
      event.copies = account.copies;
      event.tokens = account.copied_tokens;
      engine.events.emit(event);
    }
    if (account.waited && engine.events.wants(EventKind::kNoRoom)) {
      Event event = event_of(*request.branch, EventKind::kNoRoom);
      event.pages = account.pages_missing;
      engine.events.emit(event);
    }
  }
  if (!engine.events.wants(EventKind::kRegenerate)) return;
  for (const StepPlan::Run& run : engine.plan->runs) {
    const std::int64_t again = std::min(run.end, run.segment->evicted_end) - run.begin;
    if (!run.store || again <= 0) continue;
    const auto asked = std::find_if(requests.begin(), requests.end(), [&](const StepRequest& r) {
      return r.tip == run.owner && r.branch != nullptr;
    });
    if (asked == requests.end()) continue;
    Event event = event_of(*asked->branch, EventKind::kRegenerate);
    event.tokens = again;
    engine.events.emit(event);
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

void emit_step(const SessionCore& session, std::span<const StepRequest> requests,
               const StepReport& report, double ms) {
  EngineCore& engine = *session.engine;
  std::vector<BranchId> ran;
  std::vector<BranchId> waited;
  for (const StepRequest& request : requests) {
    if (request.branch == nullptr) continue;
    // One that is kOpen and was not reached waits for rows.
    const bool waits = request.account.waited || request.state == StepRequest::State::kOpen;
    if (request.account.ran) {
      ran.push_back(request.branch->id);
    } else if (waits) {
      waited.push_back(request.branch->id);
    }
  }
  keep_once(ran);
  keep_once(waited);
  Event event = event_of(session, EventKind::kStep);
  event.rows = report.rows;
  event.redundant_rows = report.redundant_rows;
  event.branches = std::ssize(ran);
  event.waiting = std::ssize(waited);
  event.copies = report.copies_on_write;
  event.pages = report.pages_acquired;
  event.unique_bytes = engine.unique_bytes;
  event.naive_bytes = engine.naive_bytes;
  event.ms = ms;
  event.ran = ran;
  event.waited = waited;
  engine.events.emit(event);
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
