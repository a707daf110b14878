#include "engine/calls/prefill_call.h"

#include <utility>

#include "engine/branches/tell.h"
#include "engine/calls/prompt_branch.h"

namespace dendrite {

PrefillCall::PrefillCall(SessionCore& session, std::span<const Token> tokens,
                         const PrefillOptions& options, Salt salt)
    : RequestsCall(session, options.cancel),
      tokens_(tokens.begin(), tokens.end()),
      branch_(begin_prompt(session, tokens, options.stream, salt)),
      state_(state_of(branch_)) {
  const TreeLock lock(engine_.tree_mutex);
  hold(*state_);
  Wish wish = wish_for(*state_, state_->tip);
  wish.to_come = 0;
  want(wish);
  place_ = engine_.prefills.emplace(PromptKey{salt, tokens_}, state_);
}

PrefillCall::~PrefillCall() {
  {
    const TreeLock lock(engine_.tree_mutex);
    leave_prompts();
  }
  leave();  // before the branch goes
}

void PrefillCall::leave_prompts() {
  if (place_) engine_.prefills.erase(*std::exchange(place_, std::nullopt));
}

void PrefillCall::take(std::span<const StepOutcome> outcomes, ReadyLanes& ready) {
  for (const StepOutcome& outcome : outcomes) computed_ += outcome.new_rows;
  RequestsCall::take(outcomes, ready);
}

void PrefillCall::finish(Finish ended) {
  const TreeLock lock(engine_.tree_mutex);
  leave_prompts();
  state_->finish = has_no_room() ? Finish::kBudget : ended;
  // (Of tokens that it computed K and V may be gone again.)
  const std::int64_t there = engine_.tree->computed(state_->tip);
  state_->prompt_shared = static_cast<std::int32_t>(std::max<std::int64_t>(0, there - computed_));
  // (What was found in the index only is no row, if the call ended before its first step.)
  if (state_->finish == Finish::kRunning || state_->tokens_computed > 0) {
    session_->count_independent(*state_, engine_.tree->computed(state_->tip));
  }
  if (state_->finish == Finish::kRunning && engine_.prefix_index != nullptr) {
    engine_.prefix_index->insert(tokens_, state_->tip);
    engine_.debug_check();
  }
  tell_finish(*state_, 0, elapsed_ms());
}

}  // namespace dendrite
