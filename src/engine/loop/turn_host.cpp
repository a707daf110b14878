#include "engine/loop/turn_host.h"

#include <limits>

#include "engine/branches/tell.h"
#include "engine/loop/turn.h"
#include "step/stepper.h"

namespace dendrite {

void TurnHost::run(std::span<Call* const> calls, std::size_t in_progress) {
  EngineTurn turn(engine_, memory_, calls, in_progress);
  turn_ = &turn;
  turn.run();
}

void TurnHost::drop_begun() {
  const std::vector<std::uint64_t> owners = engine_.stepper->drop_begun();
  const TreeLock lock(engine_.tree_mutex);
  EngineTurn::charge_discarded(engine_, owners);
}

bool TurnHost::has_begun() const {
  return engine_.stepper->has_begun();
}

void TurnHost::collect_holders(std::vector<Holder>& out) {
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
    for (const Tip& tip : *of_call) {
      out.push_back({.tip = &tip, .priority = std::numeric_limits<int>::min()});
    }
  }
}

void TurnHost::on_evicted(const Tip& tip, bool running, std::int64_t tokens,
                          std::int64_t pages_before) {
  if (!engine_.events.wants_any(mask_of(EventKind::kEvict, EventKind::kPreempt))) return;
  for (const SessionCore* session : engine_.sessions) {
    for (const BranchState& branch : session->slab) {
      if (&branch.tip == &tip) return tell_evict(branch, running, tokens, pages_before);
    }
  }
}

void TurnHost::on_pressure(Pressure level) {
  tell_pressure(engine_, level);
}

void TurnHost::on_forgotten(std::int64_t pages_before) {
  tell_forget(engine_, pages_before);
}

void TurnHost::on_planned(std::span<const StepRequest> requests,
                          std::span<const StepOutcome> outcomes) {
  turn_->tell_planned(requests, outcomes);
}

void TurnHost::before_draws() {
  turn_->prepare_draws();
}

void TurnHost::on_changed() {
  engine_.debug_check();
}

}  // namespace dendrite
