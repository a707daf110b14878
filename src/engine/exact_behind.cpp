// Exact twins of compositions: begun, computed in rows and pages that nobody wants, dropped.
#include <algorithm>
#include <limits>
#include <utility>

#include "engine/session_core.h"
#include "engine/turn.h"

namespace dendrite {

void SessionCore::begin_exact(BranchState& branch) {
  EngineCore& e = *engine;
  if (branch.exact != nullptr || e.prefix_index == nullptr || e.tree->moves(branch.tip) == 0) {
    return;
  }
  BranchState& state = *take_state(branch);
  state.is_ahead = true;
  state.id = branch.id;
  state.parent = branch.parent;
  state.composition.reset();
  state.constraint = {};
  state.last_used = e.clock;
  state.priority = std::numeric_limits<int>::min();
  const std::vector<Token> tokens = e.tree->tokens(branch.tip);
  state.tip = known_prefix(tokens);
  e.tree->append(state.tip,
                 std::span(tokens).subspan(static_cast<std::size_t>(e.tree->length(state.tip))));
  branch.exact = &state;
  e.behind.push_back(&state);
  e.any_behind = true;
  e.debug_check();
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

/// The first one goes first: two would not be there sooner. What calls draw ahead goes before.
EngineTurn::Behind::Behind(EngineTurn& turn) : turn_(turn) {
  EngineCore& engine = turn.engine_;
  if (!engine.any_behind) return;
  const TreeLock lock(engine.tree_mutex);
  const auto is_ahead = [](const Wish& wish) { return wish.request.optional; };
  if (engine.behind.empty() || std::ranges::any_of(turn.wishes_, is_ahead)) return;
  state_ = engine.behind.front();
  session_ = state_->session->shared_from_this();
  ++state_->calls;
  Wish& wish = turn.wishes_.emplace_back();
  wish.request.tip = &state_->tip;
  wish.request.optional = true;
  wish.branch = state_;
}

void EngineTurn::Behind::look() {
  for (std::size_t i = 0; i < turn_.order_.size(); ++i) {
    if (turn_.order_[i]->branch == state_) has_room_ = !turn_.outcomes_[i].waited;
  }
}

EngineTurn::Behind::~Behind() {
  if (state_ == nullptr) return;
  EngineCore& engine = turn_.engine_;
  const TreeLock lock(engine.tree_mutex);
  --state_->calls;
  if (state_->orphaned) {
    session_->drop_place(*state_);
  } else if (!has_room_ || engine.tree->computed(state_->tip) == engine.tree->length(state_->tip)) {
    std::erase(engine.behind, state_);
    engine.any_behind = !engine.behind.empty();
  }
}

}  // namespace dendrite
