// Who pays for a step, who hears of it, and who holds pages.
#include <algorithm>
#include <limits>
#include <utility>

#include "engine/branches/tell.h"
#include "engine/calls/lane.h"
#include "engine/loop/turn.h"
#include "step/stepper.h"

namespace dendrite {

void EngineTurn::account(const StepReport& report, double took_ms) {
  const TreeLock lock(engine_.tree_mutex);
  accepted_ = engine_.counts.speculation.tokens_accepted();
  charge_discarded(report.discarded);
  if (report.moved > 0) engine_.counts.moves = engine_.backend->move_totals();
  if (report.rows > 0) {
    ++engine_.counts.steps;
    if (report.early) ++engine_.counts.steps_early;
    engine_.record_step(took_ms, report.bytes_read);
  }
  for (const Part& part : parts_) account_part(part, report, took_ms);
  if (!draft_wishes_.empty()) account_drafts(report, took_ms);
}

/// Sessions that want drafts, and whether they got any; the step without the time of drafting.
void EngineTurn::account_drafts(const StepReport& report, double took_ms) {
  const double step_ms = report.early ? took_ms : last_end_ms_ - drafted_at_ms_;
  const auto add = [&](SpeculationStats& to, bool is_drafted) {
    to.draft_seconds += draft_ms_ / 1e3;
    if (report.rows == 0) return;
    ++(is_drafted ? to.steps_drafted : to.steps_plain);
    (is_drafted ? to.steps_drafted_seconds : to.steps_plain_seconds) += step_ms / 1e3;
  };
  for (const Part& part : parts_) {
    const bool wants = std::ranges::any_of(draft_wishes_, [&](const DraftWish& wish) {
      return wish.draft->lane->branch->session == part.session;
    });
    if (!wants) continue;
    bool is_drafted = false;
    for (std::size_t i = part.first; i < part.end; ++i) {
      is_drafted = is_drafted || (order_[i]->is_draft && outcomes_[i].rows > 0);
    }
    add(part.session->stats.speculation, is_drafted);
    any_drafted_ = any_drafted_ || is_drafted;
  }
  add(engine_.counts.speculation, any_drafted_);
}

void EngineTurn::account_part(const Part& part, const StepReport& report, double took_ms) {
  SessionCore& session = *part.session;
  Stats& stats = session.stats;
  SessionStep step{.pages = report.pages_acquired, .ms = took_ms};
  for (std::size_t i = part.first; i < part.end; ++i) {
    const StepOutcome& outcome = outcomes_[i];
    if (order_[i]->is_draft) {
      stats.tokens_drafted += outcome.rows;
      continue;
    }
    if (outcome.no_room) {
      session.record_shortage(*requests_[i].tip);
      tell_reject(*order_[i]->branch, *session.shortage);
    }
    if (requests_[i].optional) session.ahead_rows += outcome.rows;
    stats.evictions += outcome.evictions;
    stats.preemptions += outcome.preemptions;
    stats.tokens_regenerated += outcome.regenerated_rows;
    stats.copies_on_write += outcome.copies;
    stats.tokens_moved += outcome.moved;
    step.rows += outcome.rows;
    step.redundant_rows += outcome.redundant_rows;
    step.copies += outcome.copies;
  }
  if (step.rows == 0) return;
  ++stats.steps;
  stats.tokens_computed += step.rows;
  stats.tokens_redundant += step.redundant_rows;
  stats.largest_batch_rows = std::max(stats.largest_batch_rows, report.rows);
  session.record_kv_bytes();
  const auto number = static_cast<std::int32_t>(stats.steps);
  for (std::size_t i = part.first; i < part.end; ++i) {
    if (order_[i]->is_draft) continue;
    BranchState& branch = *order_[i]->branch;
    // One that was not reached waits for rows.
    (outcomes_[i].ran ? step.ran : step.waited).push_back(branch.id);
    if (!outcomes_[i].ran) continue;
    branch.tokens_computed += static_cast<std::int32_t>(outcomes_[i].rows);
    // A call may have several requests of one branch: the step counts once.
    if (std::exchange(branch.last_step, number) == number) continue;
    ++branch.steps;
    branch.step_ms += took_ms;
  }
  if (engine_.events.wants(EventKind::kStep)) {
    for (const Wish& wish : wishes_) {
      if (wish.outside && wish.branch->session == &session) step.waited.push_back(wish.branch->id);
    }
  }
  tell_step(session, step);
}

void EngineTurn::charge_discarded(std::span<const std::uint64_t> owners) {
  for (const std::uint64_t owner : owners) {
    const auto found = std::ranges::find(engine_.sessions, owner, &SessionCore::number);
    Stats& stats =
        found == engine_.sessions.end() ? engine_.counts.ended_sessions : (*found)->stats;
    ++stats.tokens_discarded;
  }
}

void EngineTurn::collect_holders(std::vector<Holder>& out) {
  const EngineTime now = engine_.now();
  for (const SessionCore* session : engine_.sessions) {
    for (const BranchState& branch : session->slab) {
      if (branch.tip.empty()) continue;
      out.push_back({.tip = &branch.tip,
                     .priority = branch.priority,
                     .last_used = branch.last_used,
                     .on_hold = branch.held_until > now && !branch.outside,
                     .in_call = branch.calls > 0});
    }
  }
  for (const EngineCore::Tips* of_call : engine_.call_tips) {
    for (const std::unique_ptr<Tip>& tip : *of_call) {
      out.push_back({.tip = tip.get(), .priority = std::numeric_limits<int>::min()});
    }
  }
}

void EngineTurn::on_evicted(const Tip& tip, bool running, std::int64_t tokens,
                            std::int64_t pages_before) {
  if (!engine_.events.wants_any(mask_of(EventKind::kEvict, EventKind::kPreempt))) return;
  for (const SessionCore* session : engine_.sessions) {
    for (const BranchState& branch : session->slab) {
      if (&branch.tip == &tip) return tell_evict(branch, running, tokens, pages_before);
    }
  }
}

void EngineTurn::on_pressure(Pressure level) {
  tell_pressure(engine_, level);
}

void EngineTurn::on_forgotten(std::int64_t pages_before) {
  tell_forget(engine_, pages_before);
}

void EngineTurn::on_planned(std::span<const StepRequest> requests,
                            std::span<const StepOutcome> outcomes) {
  if (!engine_.events.wants_any(mask_of(EventKind::kCopyOnWrite, EventKind::kNoRoom,
                                        EventKind::kRegenerate, EventKind::kAllocate)))
    return;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    tell_planned(*order_[i]->branch, outcomes[i]);
  }
  for (const Wish& wish : wishes_) {
    if (!wish.outside || wish.is_draft) continue;
    tell_planned(*wish.branch, {.waited = true, .pages_missing = wish.pages_lacking});
  }
}

void EngineTurn::on_changed() {
  engine_.debug_check();
}

}  // namespace dendrite
