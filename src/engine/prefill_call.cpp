#include "engine/prefill_call.h"

#include <algorithm>

#include "core/hash.h"
#include "dendrite/error.h"
#include "engine/tell.h"

namespace dendrite {

PrefillCall::PrefillCall(SessionCore& session, std::span<const Token> tokens,
                         const PrefillOptions& options)
    : RequestsCall(session, options.cancel),
      tokens_(tokens.begin(), tokens.end()),
      branch_(session.begin_prompt(tokens, options)),
      state_(branch_.state()) {
  const TreeLock lock(engine_.tree_mutex);
  hold(*state_);
  Wish wish = wish_for(*state_, state_->tip);
  wish.to_come = 0;
  want(wish);
  engine_.prefills.push_back(this);
}

PrefillCall::~PrefillCall() {
  {
    const TreeLock lock(engine_.tree_mutex);
    std::erase(engine_.prefills, this);
  }
  leave();  // before the branch goes
}

void PrefillCall::conclude(Finish ended) {
  const TreeLock lock(engine_.tree_mutex);
  std::erase(engine_.prefills, this);
  state_->finish = has_no_room() ? Finish::kBudget : ended;
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

void SessionCore::check_positions(std::int64_t tokens, const char* what) const {
  const EngineCore& e = *engine;
  if (tokens <= e.position_limit) return;
  const std::string has = std::string(what) + ": " + std::to_string(tokens) + " tokens; ";
  const std::string most = std::to_string(e.position_limit);
  if (e.config.max_positions_hard) {
    throw Error(has + "this model's " + name_of(e.config.rope.type) +
                " RoPE is exact for at most " + most);
  }
  throw Error(has + "this model has positions for at most " + most +
              " (max_position_embeddings; beyond_positions, --beyond-positions go on with worse "
              "answers)");
}

void SessionCore::check_length(std::int64_t tokens, const char* what) const {
  check_positions(tokens, what);
  if (tokens <= engine->info.kv_tokens) return;
  throw Error(std::string(what) + ": " + std::to_string(tokens) + " tokens; the KV pool holds " +
              std::to_string(engine->info.kv_tokens) +
              " (make it larger with kv_tokens, --kv-tokens)");
}

Branch SessionCore::begin_prompt(std::span<const Token> tokens,
                                 const PrefillOptions& prefill_options) {
  EngineCore& e = *engine;
  if (tokens.empty()) throw Error("prefill: the prompt has no tokens; expected at least one");
  e.check_tokens(tokens);
  check_length(std::ssize(tokens), "prefill");
  const TreeLock lock(e.tree_mutex);
  const std::uint64_t stream = prefill_options.stream
                                   ? *prefill_options.stream
                                   : stream_of_prompt(hash_bytes(std::as_bytes(tokens)));
  Branch branch =
      begin_at(known_prefix(tokens),
               {.stream = stream, .prompt_length = std::ssize(tokens), .last_used = ++e.clock});
  const std::int64_t reused = append_rest(*branch.state(), tokens);
  tell_prefill(*branch.state(), reused);
  return branch;
}

Branch SessionCore::begin_text(std::span<const Token> tokens, const BranchState* other,
                               std::int64_t common, bool known) {
  EngineCore& e = *engine;
  const TreeLock lock(e.tree_mutex);
  Tip tip =
      known && tokens.size() > 1 ? known_prefix(tokens.first(tokens.size() - 1)) : e.tree->root();
  if (other != nullptr && common > e.tree->length(tip)) {
    e.tree->drop(tip);
    tip = e.tree->at(other->tip, common);
  }
  Branch branch =
      begin_at(std::move(tip), {.prompt_length = std::ssize(tokens), .last_used = ++e.clock});
  append_rest(*branch.state(), tokens);
  return branch;
}

std::int64_t SessionCore::append_rest(BranchState& branch, std::span<const Token> tokens) {
  const std::int64_t reused = engine->tree->length(branch.tip);
  stats.tokens_reused += reused;
  append(branch, tokens.subspan(static_cast<std::size_t>(reused)));
  return reused;
}

/// The longest prefix that somebody holds, or that another prompt under way will hold in a moment:
/// the two share its tokens, which are computed once.
Tip SessionCore::known_prefix(std::span<const Token> tokens) {
  EngineCore& e = *engine;
  std::optional<Tip> known;
  if (e.prefix_index != nullptr) known = e.prefix_index->longest_match(tokens);
  std::int64_t length = known ? e.tree->length(*known) : 0;
  const PrefillCall* longer = nullptr;
  for (const PrefillCall* other : e.prefills) {
    const auto end = std::ranges::mismatch(tokens, other->tokens()).in1;
    if (end - tokens.begin() <= length || e.prefix_index == nullptr) continue;
    length = end - tokens.begin();
    longer = other;
  }
  if (longer == nullptr) return known ? std::move(*known) : e.tree->root();
  if (known) e.tree->drop(*known);
  return e.tree->at(longer->branch().tip, length);
}

}  // namespace dendrite
