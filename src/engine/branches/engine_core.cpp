#include "engine/branches/engine_core.h"

#include "dendrite/error.h"
#include "engine/branches/draft_provider.h"
#include "engine/branches/known_compositions.h"
#include "engine/branches/session_core.h"

namespace dendrite {

EngineCore::~EngineCore() {
  // What has tips goes before the tree.
  drafts.reset();
  if (prefix_index != nullptr) prefix_index->clear();
  if (compositions != nullptr) compositions->clear();
  if (chunks != nullptr) chunks->clear();
}

void EngineCore::enter(SessionCore& session) {
  const TreeLock lock(tree_mutex);
  session.number = ++sessions_made;
  sessions.push_back(&session);
}

void EngineCore::leave(SessionCore& session) {
  const TreeLock lock(tree_mutex);
  add(counts.ended_sessions, session.stats);
  std::erase(sessions, &session);
}

void EngineCore::record_step(double ms, std::int64_t bytes) {
  counts.step_ms += ms;
  counts.bytes_read += bytes;
  counts.passes = backend->pass_counts();
  const KvShape& shape = store->shape();
  const std::int64_t page_bytes = shape.token_bytes() * shape.page_tokens;
  std::int64_t naive_pages = 0;
  for (const SessionCore* session : sessions) naive_pages += session->naive_pages;
  counts.unique_bytes = tree->pool().used_pages() * page_bytes;
  counts.naive_bytes = naive_pages * page_bytes;
  // Counting slots walks all pages: only when they have become more by a twentieth.
  const std::int64_t used = tree->pool().used_pages();
  if (used * 20 <= counts.peak_pages * 21) return;
  counts.peak_pages = used;
  counts.peak_slots = tree->slots_used();
}

void EngineCore::record_turn(double ms, bool made_step) {
  counts.busy_ms += ms;
  if (!made_step) return;
  std::int64_t tokens = counts.ended_sessions.tokens_generated;
  for (const SessionCore* session : sessions) tokens += session->stats.tokens_generated;
  counts.rates.add({tokens, counts.bytes_read, counts.busy_ms, counts.step_ms});
}

const Tokenizer& EngineCore::require_tokenizer() const {
  if (!tokenizer) {
    throw Error(info.model_path + ": has no tokenizer.json; expected one for text, or token ids");
  }
  return *tokenizer;
}

std::shared_ptr<const Grammar> EngineCore::compiled(const Constraint& constraint) const {
  require_tokenizer();
  return grammars->compiled(constraint);
}

void EngineCore::check_tokens(std::span<const Token> tokens) const {
  for (const Token token : tokens) {
    if (token < 0 || token >= vocab()) {
      throw Error("token id " + std::to_string(token) +
                  " is outside the vocabulary; expected 0 to " + std::to_string(vocab() - 1));
    }
  }
}

std::vector<Token> EngineCore::chunk_stub() const {
  constexpr std::size_t kTokens = 4;
  std::vector<Token> one;
  if (model_info.bos) {
    one = {*model_info.bos};
  } else if (tokenizer) {
    one = tokenizer->encode("\n", false);
  }
  std::vector<Token> stub;
  for (std::size_t i = 0; i < kTokens; ++i) stub.insert(stub.end(), one.begin(), one.end());
  return stub;
}

}  // namespace dendrite
