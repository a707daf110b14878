#include "engine/calls/exact_behind.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "engine/calls/prompt_branch.h"

namespace dendrite {

void begin_exact(BranchState& branch) {
  SessionCore& session = *branch.session;
  EngineCore& engine = *session.engine;
  if (branch.exact != nullptr || engine.prefix_index == nullptr ||
      engine.tree->moves(branch.tip) == 0) {
    return;
  }
  BranchState& state = session.take_place(branch);
  state.rare.reset();
  const std::vector<Token> tokens = engine.tree->tokens(branch.tip);
  state.tip = known_prefix(engine, tokens, engine.tree->salt(branch.tip));
  engine.tree->append(state.tip, std::span(tokens).subspan(
                                     static_cast<std::size_t>(engine.tree->length(state.tip))));
  branch.exact = &state;
  engine.behind.push_back(&state);
  engine.any_behind = true;
  engine.debug_check();
}

/// The first one goes first: two would not be there sooner. What calls draw ahead goes before.
ExactBehind::ExactBehind(EngineCore& engine, std::vector<Wish>& wishes) : engine_(engine) {
  if (!engine.any_behind) return;
  const auto is_ahead = [](const Wish& wish) { return wish.request.optional; };
  if (engine.behind.empty() || std::ranges::any_of(wishes, is_ahead)) return;
  state_ = engine.behind.front();
  session_ = state_->session->shared_from_this();
  ++state_->calls;
  Wish& wish = wishes.emplace_back();
  wish.request.tip = &state_->tip;
  wish.request.optional = true;
  wish.branch = state_;
}

ExactBehind::~ExactBehind() {
  if (state_ == nullptr) return;
  const TreeLock lock(engine_.tree_mutex);
  --state_->calls;
  if (state_->orphaned) {
    session_->drop_place(*state_);
  } else if (!has_room_ ||
             engine_.tree->computed(state_->tip) == engine_.tree->length(state_->tip)) {
    std::erase(engine_.behind, state_);
    engine_.any_behind = !engine_.behind.empty();
  }
}

}  // namespace dendrite
