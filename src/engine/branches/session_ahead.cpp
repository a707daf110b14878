// What is computed behind a branch, in the session: tokens drawn ahead, and its exact twin.
#include <limits>
#include <utility>

#include "engine/branches/ahead.h"
#include "engine/branches/session_core.h"

namespace dendrite {

Ahead& SessionCore::ahead_of(BranchState& branch, const SamplerSettings& settings, int top) {
  if (branch.ahead != nullptr) return *branch.ahead;
  branch.ahead = std::make_unique<Ahead>();
  Ahead& ahead = *branch.ahead;
  ahead.settings = settings;
  ahead.top_logprobs = top;
  ahead.state = &take_place(branch);
  ahead.state->tip = engine->tree->fork(branch.tip);
  engine->debug_check();
  return ahead;
}

void SessionCore::take_ahead(BranchState& branch) {
  Ahead& ahead = *branch.ahead;
  const std::int64_t rows = ahead.tokens.front().rows;
  ahead_rows -= rows;
  branch.tokens_computed += static_cast<std::int32_t>(rows);
  ahead.tokens.pop_front();
  ahead.taken_from = true;
  move_to(branch, ahead.state->tip, engine->tree->length(branch.tip) + 1);
  ++stats.tokens_taken;
  if (ahead.tokens.empty()) drop_ahead(branch);
  engine->debug_check();
}

BranchState& SessionCore::take_place(const BranchState& branch) {
  BranchState& state = *take_state(branch);
  state.is_ahead = true;
  state.id = branch.id;
  state.parent = branch.parent;
  state.last_used = engine->clock;
  state.priority = std::numeric_limits<int>::min();
  return state;
}

void SessionCore::drop_place(BranchState& state) {
  engine->tree->drop(state.tip);
  give_state_back(state);
}

void SessionCore::drop_ahead(BranchState& branch) {
  drop_place(*branch.ahead->state);
  branch.ahead.reset();
}

void SessionCore::drop_exact(BranchState& branch) {
  BranchState& state = *std::exchange(branch.exact, nullptr);
  std::erase(engine->behind, &state);
  engine->any_behind = !engine->behind.empty();
  if (state.calls > 0) {
    state.orphaned = true;  // the turn that computes it drops it
  } else {
    drop_place(state);
  }
}

}  // namespace dendrite
