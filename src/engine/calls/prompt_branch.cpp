#include "engine/calls/prompt_branch.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <optional>
#include <string>
#include <utility>

#include "core/hash.h"
#include "core/sha256.h"
#include "dendrite/error.h"
#include "engine/branches/tell.h"

namespace dendrite {

void check_positions(const EngineCore& engine, std::int64_t tokens, const char* what) {
  if (tokens <= engine.position_limit) return;
  const std::string has = std::string(what) + ": " + std::to_string(tokens) + " tokens; ";
  const std::string most = std::to_string(engine.position_limit);
  if (engine.model_info.positions.hard) {
    throw Error(has + "this model's " + engine.model_info.positions.rope +
                " RoPE is exact for at most " + most);
  }
  throw Error(has + "this model has positions for at most " + most +
              " (max_position_embeddings; beyond_positions, --beyond-positions go on with worse "
              "answers)");
}

void check_length(const EngineCore& engine, std::int64_t tokens, const char* what) {
  check_positions(engine, tokens, what);
  if (tokens <= engine.info.kv_tokens) return;
  throw Error(std::string(what) + ": " + std::to_string(tokens) + " tokens; the KV pool holds " +
              std::to_string(engine.info.kv_tokens) +
              " (make it larger with kv_tokens, --kv-tokens)");
}

Salt salt_of(std::string_view text) {
  if (text.empty()) return 0;
  Salt salt = 0;
  std::memcpy(&salt, sha256(text).data(), sizeof salt);
  return salt;
}

Salt salt_of(const Branch& branch) {
  const BranchState& state = *state_of(branch);
  EngineCore& engine = *state.session->engine;
  const TreeLock lock(engine.tree_mutex);
  return engine.tree->salt(state.tip);
}

Tip known_prefix(EngineCore& engine, std::span<const Token> tokens, Salt salt) {
  std::optional<Tip> known;
  if (engine.prefix_index != nullptr) known = engine.prefix_index->longest_match(tokens, salt);
  std::int64_t length = known ? engine.tree->length(*known) : 0;
  const BranchState* longer = nullptr;
  const auto look_at = [&](const PromptsUnderWay::value_type& other) {
    if (other.first.salt != salt) return;
    const std::int64_t common =
        std::ranges::mismatch(tokens, other.first.tokens).in1 - tokens.begin();
    if (common <= length) return;
    length = common;
    longer = other.second;
  };
  if (engine.prefix_index != nullptr) {
    const auto next = engine.prefills.lower_bound({salt, tokens});
    if (next != engine.prefills.end()) look_at(*next);
    if (next != engine.prefills.begin()) look_at(*std::prev(next));
  }
  if (longer == nullptr) return known ? std::move(*known) : engine.tree->root(salt);
  if (known) engine.tree->drop(*known);
  return engine.tree->at(longer->tip, length);
}

std::int64_t append_rest(BranchState& branch, std::span<const Token> tokens) {
  SessionCore& session = *branch.session;
  const std::int64_t reused = session.engine->tree->length(branch.tip);
  session.stats.tokens_reused += reused;
  session.append(branch, tokens.subspan(static_cast<std::size_t>(reused)));
  return reused;
}

Branch begin_prompt(SessionCore& session, std::span<const Token> tokens,
                    std::optional<std::uint64_t> stream, Salt salt) {
  EngineCore& engine = *session.engine;
  if (tokens.empty()) throw Error("prefill: the prompt has no tokens; expected at least one");
  engine.check_tokens(tokens);
  check_length(engine, std::ssize(tokens), "prefill");
  const TreeLock lock(engine.tree_mutex);
  if (!stream) stream = session.stream_of_prompt(hash_bytes(std::as_bytes(tokens)));
  Branch branch = session.begin_at(
      known_prefix(engine, tokens, salt),
      {.stream = *stream, .prompt_length = std::ssize(tokens), .last_used = ++engine.clock});
  const std::int64_t reused = append_rest(*state_of(branch), tokens);
  tell_prefill(*state_of(branch), reused);
  return branch;
}

Branch begin_text(SessionCore& session, std::span<const Token> tokens, const BranchState* other,
                  std::int64_t common, bool known) {
  EngineCore& engine = *session.engine;
  const TreeLock lock(engine.tree_mutex);
  Tip tip = known && tokens.size() > 1 ? known_prefix(engine, tokens.first(tokens.size() - 1), 0)
                                       : engine.tree->root();
  if (other != nullptr && common > engine.tree->length(tip)) {
    engine.tree->drop(tip);
    tip = engine.tree->at(other->tip, common);
  }
  Branch branch = session.begin_at(
      std::move(tip), {.prompt_length = std::ssize(tokens), .last_used = ++engine.clock});
  append_rest(*state_of(branch), tokens);
  return branch;
}

}  // namespace dendrite
