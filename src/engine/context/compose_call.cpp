#include "engine/context/compose_call.h"

#include <algorithm>
#include <utility>

#include "core/hash.h"
#include "dendrite/error.h"
#include "engine/branches/tell.h"
#include "engine/calls/exact_behind.h"
#include "engine/calls/prompt_branch.h"
#include "engine/context/move_check.h"

namespace dendrite {
namespace {

bool may_move(const ComposeCall::Wanted& wanted) {
  const auto is_moved = [](const PlainPiece& piece) { return piece.source != nullptr; };
  return !wanted.exact && std::ranges::any_of(wanted.pieces, is_moved);
}

/// The branch of a composition. `tip`: at all of its tokens; `parent`: whose fork it is; where it
/// is nobody's, `tokens_hash` is that of its tokens.
Branch begin_composition(SessionCore& session, Tip tip,
                         std::shared_ptr<const CompositionRecord> record, BranchState* parent,
                         std::uint64_t tokens_hash) DENDRITE_REQUIRES(kTreeLock) {
  EngineCore& e = *session.engine;
  const std::int64_t length = e.tree->length(tip);
  Inherited inherited{.prompt_length = length, .last_used = ++e.clock};
  if (parent != nullptr) {
    inherited.stream = session.stream_of_fork(*parent, static_cast<std::uint64_t>(length), {});
    inherited.priority = parent->priority;
  } else {
    inherited.stream = session.stream_of_prompt(tokens_hash);
  }
  inherited.rare.edit().composition = std::move(record);
  Branch branch = session.begin_at(std::move(tip), inherited);
  BranchState* state = state_of(branch);
  if (parent != nullptr) state->parent = parent->id;
  e.tree->open_sources(state->tip);  // what they are read from may go in a moment
  session.stats.tokens_reused += e.tree->computed(state->tip);
  const Composition report = state->rare->composition->report(length);
  ++session.stats.compositions;
  if (report.moved > 0 && e.tree->computed(state->tip) == length) ++e.counts.composed_hits;
  session.stats.tokens_repaired += report.repaired;
  return branch;
}

}  // namespace

ComposeCall::ComposeCall(SessionCore& session, std::vector<Wanted> wanted, const char* what,
                         std::stop_token cancel)
    : RequestsCall(session, std::move(cancel)), wanted_(std::move(wanted)) {
  if (std::ranges::any_of(wanted_, may_move) && engine_.model->why_not_move().empty()) {
    check_moves(engine_, what);
  }
  const TreeLock lock(engine_.tree_mutex);
  std::vector<Start> starts;
  for (const Wanted& one : wanted_) starts.push_back(start_of(one, what));
  for (std::size_t i = 0; i < wanted_.size(); ++i) begin(wanted_[i], std::move(starts[i]));
}

ComposeCall::Start ComposeCall::start_of(const Wanted& wanted, const char* what) const {
  Start start;
  if (wanted.of_chunks && !wanted.exact && wanted.salt == 0 &&
      engine_.known_compositions != nullptr) {
    start.known = engine_.known_compositions->find(wanted.pieces);
    if (start.known != nullptr) return start;
  }
  start.plan = plan_composition(wanted.pieces, wanted.exact, wanted.salt);
  start.plan.record.dropped = wanted.dropped;
  const Lineage& lineage = start.plan.lineage;
  if (!wanted.exact && !lineage.moved().empty()) start.plan.record.note += wanted.note;
  if (lineage.length() == 0) {
    throw Error(std::string(what) + ": the composition has no tokens; expected at least one");
  }
  check_length(engine_, lineage.length(), what);
  if (lineage.moved().empty()) return start;
  if (const std::string why = engine_.model->why_not_move(); !why.empty()) {
    throw Error(std::string(what) + ": K of this model can't be moved: " + why);
  }
  return start;
}

void ComposeCall::begin(const Wanted& wanted, Start start) {
  std::uint64_t tokens_hash = 0;
  if (start.known != nullptr) {
    tokens_hash = start.known->tokens_hash;
    const Tip& tip = engine_.known_compositions->tip(*start.known);
    branches_.push_back(begin_composition(*session_, engine_.tree->fork(tip), start.known->record,
                                          wanted.parent, tokens_hash));
  } else {
    const Lineage& lineage = start.plan.lineage;
    if (wanted.parent == nullptr) {
      tokens_hash = hash_bytes(std::as_bytes(std::span(lineage.tokens())));
    }
    auto record = std::make_shared<const CompositionRecord>(std::move(start.plan.record));
    branches_.push_back(begin_composition(*session_, engine_.tree->tip_of(lineage),
                                          std::move(record), wanted.parent, tokens_hash));
  }
  tokens_hashes_.push_back(tokens_hash);
  BranchState* state = state_of(branches_.back());
  states_.push_back(state);
  hold(*state);
  want(wish_for(*state, state->tip));
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

void ComposeCall::finish(Finish ended) {
  const TreeLock lock(engine_.tree_mutex);
  for (std::size_t i = 0; i < states_.size(); ++i) {
    BranchState* state = states_[i];
    const bool complete = engine_.tree->computed(state->tip) == engine_.tree->length(state->tip);
    state->finish = complete ? Finish::kRunning : finish_of(i, ended);
    if (complete) {
      const std::int64_t length = engine_.tree->length(state->tip);
      session_->count_independent(*state, length);
      remember(i);
      if (wanted_[i].exact_behind) begin_exact(*state);
    }
    tell_compose(*state, elapsed_ms());
    tell_finish(*state, 0, elapsed_ms());
  }
}

/// For who composes the same again.
void ComposeCall::remember(std::size_t i) {
  const Tip& tip = states_[i]->tip;
  if (engine_.compositions == nullptr || engine_.tree->moves(tip) == 0) return;
  const std::uint64_t path = engine_.tree->path(tip);
  const std::uint64_t number = engine_.compositions->insert(path, tip);
  if (!wanted_[i].of_chunks || wanted_[i].parent != nullptr) return;
  engine_.known_compositions->add({std::move(wanted_[i].pieces), tokens_hashes_[i],
                                   states_[i]->rare->composition, path, number});
}

}  // namespace dendrite
