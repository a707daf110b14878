// Drafts in the session: begun, taken over, dropped. All of it with the tree lock held.
#include "engine/draft.h"

#include <limits>

#include "engine/session_core.h"

namespace dendrite {

Draft& SessionCore::draft_of(BranchState& branch, const SamplerSettings& settings, int top) {
  if (branch.draft != nullptr) return *branch.draft;
  branch.draft = std::make_unique<Draft>();
  Draft& draft = *branch.draft;
  draft.settings = settings;
  draft.top_logprobs = top;
  draft.state = take_state();
  BranchState& state = *draft.state;
  state.is_draft = true;
  state.id = branch.id;
  state.parent = branch.parent;
  state.stream = branch.stream;
  state.prompt_length = branch.prompt_length;
  state.priority = std::numeric_limits<int>::min();
  state.tip = engine->tree->fork(branch.tip);
  engine->debug_check();
  return draft;
}

void SessionCore::take_drafted(BranchState& branch) {
  KvTree& tree = *engine->tree;
  Draft& draft = *branch.draft;
  const std::int64_t rows = draft.tokens.front().rows;
  ahead_rows -= rows;
  branch.tokens_computed += static_cast<std::int32_t>(rows);
  draft.tokens.pop_front();
  const std::int64_t length = tree.length(branch.tip) + 1;
  naive_pages -= pages_of(branch.tip);
  Tip old = std::move(branch.tip);
  branch.tip = tree.at(draft.state->tip, length);
  tree.drop(old);
  naive_pages += pages_of(branch.tip);
  ++stats.tokens_taken;
  if (draft.tokens.empty()) drop_draft(branch);
  engine->debug_check();
}

void SessionCore::drop_draft(BranchState& branch) {
  BranchState& state = *branch.draft->state;
  engine->tree->drop(state.tip);
  give_state_back(state);
  branch.draft.reset();
}

}  // namespace dendrite
