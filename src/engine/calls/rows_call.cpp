#include "engine/calls/rows_call.h"

namespace dendrite {

void RowsCall::add(ConstBranches branches, const char* what) {
  const TreeLock lock(engine_.tree_mutex);
  hold(branches, what);
  ++engine_.clock;
  for (const Branch& branch : branches) {
    BranchState& state = *state_of(branch);
    branches_.push_back(&state);
    state.last_used = engine_.clock;
    want(wish_for(state, state.tip));
  }
}

void RowsCall::finish(Finish ended) {
  std::vector<std::shared_ptr<const LogitsRow>> rows;
  {
    const TreeLock lock(engine_.tree_mutex);
    for (BranchState* state : branches_) {
      rows.push_back(engine_.tree->segment(state->tip)->logits);
      if (rows.back() == nullptr) {
        state->finish = ended == Finish::kRunning ? Finish::kBudget : ended;
      } else {
        session_->count_independent(*state, engine_.tree->length(state->tip));
      }
    }
  }
  read(rows);
}

}  // namespace dendrite
