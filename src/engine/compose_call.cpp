#include "engine/compose_call.h"

#include <algorithm>
#include <utility>

#include "core/hash.h"
#include "dendrite/error.h"
#include "engine/tell.h"

namespace dendrite {

ComposeCall::ComposeCall(SessionCore& session, std::vector<Wanted> wanted, const char* what,
                         std::stop_token cancel)
    : RequestsCall(session, std::move(cancel)) {
  for (const Wanted& one : wanted) {
    if (one.plan.lineage.length() == 0) {
      throw Error(std::string(what) + ": the composition has no tokens; expected at least one");
    }
    session.check_length(one.plan.lineage.length(), what);
    if (one.plan.lineage.moved().empty()) continue;
    if (const std::string why = engine_.model->why_not_move(); !why.empty()) {
      throw Error(std::string(what) + ": K of this model can't be moved: " + why);
    }
  }
  const TreeLock lock(engine_.tree_mutex);
  for (Wanted& one : wanted) {
    branches_.push_back(session.begin_composition(std::move(one.plan), one.parent));
    states_.push_back(branches_.back().state());
    hold(*states_.back());
    want(wish_for(*states_.back(), states_.back()->tip));
  }
}

ComposeCall::~ComposeCall() {
  leave();  // before the branches go
}

std::vector<Composed> ComposeCall::result() {
  std::vector<Composed> out;
  for (Branch& branch : std::exchange(branches_, {})) {
    Composition report = branch.composition();
    out.push_back({std::move(branch), std::move(report)});
  }
  return out;
}

void ComposeCall::conclude(Finish ended) {
  const TreeLock lock(engine_.tree_mutex);
  for (std::size_t i = 0; i < states_.size(); ++i) {
    BranchState* state = states_[i];
    const bool complete = engine_.tree->computed(state->tip) == engine_.tree->length(state->tip);
    state->finish = complete ? Finish::kRunning : finish_of(i, ended);
    if (complete) {
      const std::int64_t length = engine_.tree->length(state->tip);
      session_->count_independent(*state, length);
      if (engine_.compositions != nullptr && engine_.tree->moves(state->tip) > 0) {
        engine_.compositions->insert(engine_.tree->path(state->tip), state->tip);
      }
    }
    tell_finish(*state, 0, elapsed_ms());
  }
}

Branch SessionCore::begin_composition(CompositionPlan plan, BranchState* parent) {
  EngineCore& e = *engine;
  const std::int64_t length = plan.lineage.length();
  const auto& tokens = plan.lineage.tokens();
  Inherited inherited{.prompt_length = length, .last_used = ++e.clock};
  if (parent != nullptr) {
    inherited.stream = stream_of_fork(*parent, static_cast<std::uint64_t>(length), {});
    inherited.priority = parent->priority;
  } else {
    inherited.stream = stream_of_prompt(hash_bytes(std::as_bytes(std::span(tokens))));
  }
  inherited.composition = std::make_shared<const CompositionRecord>(std::move(plan.record));
  Branch branch = begin_at(e.tree->tip_of(plan.lineage), inherited);
  BranchState* state = branch.state();
  if (parent != nullptr) state->parent = parent->id;
  e.tree->open_sources(state->tip);  // what they are read from may go in a moment
  stats.tokens_reused += e.tree->computed(state->tip);
  const Composition report = state->composition->report(length);
  ++stats.compositions;
  if (report.moved > 0 && e.tree->computed(state->tip) == length) ++e.composed_hits;
  stats.tokens_repaired += report.repaired;
  tell_compose(*state, report.moved, e.tree->pending_rows(state->tip));
  return branch;
}

}  // namespace dendrite
