// Who pays for a step, and who hears of it.
#include <algorithm>
#include <utility>

#include "engine/branches/tell.h"
#include "engine/calls/lane.h"
#include "engine/loop/turn.h"
#include "step/stepper.h"

namespace dendrite {

void EngineTurn::account(const StepReport& report, double took_ms) {
  accepted_ = engine_.counts.speculation.tokens_accepted();
  charge_discarded(engine_, report.discarded);
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
  const double step_ms = report.early ? took_ms : stepped_ms_ - asked_ms_;
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
    branch.tokens_regenerated += static_cast<std::int32_t>(outcomes_[i].regenerated_rows);
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

void EngineTurn::charge_discarded(EngineCore& engine, std::span<const std::uint64_t> owners) {
  for (const std::uint64_t owner : owners) {
    const auto found = std::ranges::find(engine.sessions, owner, &SessionCore::number);
    Stats& stats = found == engine.sessions.end() ? engine.counts.ended_sessions : (*found)->stats;
    ++stats.tokens_discarded;
  }
}

void EngineTurn::tell_planned(std::span<const StepRequest> requests,
                              std::span<const StepOutcome> outcomes) const {
  if (!engine_.events.wants_any(mask_of(EventKind::kCopyOnWrite, EventKind::kNoRoom,
                                        EventKind::kRegenerate, EventKind::kAllocate)))
    return;
  for (std::size_t i = 0; i < requests.size(); ++i) {
    dendrite::tell_planned(*order_[i]->branch, outcomes[i]);
  }
  for (const Wish& wish : wishes_) {
    if (!wish.outside || wish.is_draft) continue;
    dendrite::tell_planned(*wish.branch, {.waited = true, .pages_missing = wish.pages_lacking});
  }
}

}  // namespace dendrite
