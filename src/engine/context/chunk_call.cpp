#include "engine/context/chunk_call.h"

#include <algorithm>
#include <utility>

#include "dendrite/error.h"
#include "engine/branches/tell.h"
#include "engine/calls/prompt_branch.h"
#include "engine/loop/run_call.h"

namespace dendrite {
namespace {

/// The branch that computes it, which goes on where another fills the same one.
Branch begin_chunk(SessionCore& session, const ChunkEntry& entry) DENDRITE_REQUIRES(kTreeLock) {
  EngineCore& e = *session.engine;
  std::vector<Token> tokens(entry.left().begin(), entry.left().end());
  tokens.insert(tokens.end(), entry.tokens().begin(), entry.tokens().end());
  const auto filling = std::ranges::find_if(
      e.chunk_calls, [&](const ChunkCall* other) { return &other->entry() == &entry; });
  Branch branch =
      session.begin_at(filling != e.chunk_calls.end() ? e.tree->fork((*filling)->branch().tip)
                                                      : known_prefix(e, tokens, 0),
                       {.prompt_length = entry.length(), .last_used = ++e.clock});
  append_rest(*state_of(branch), tokens);
  return branch;
}

std::shared_ptr<const ChunkHold> hold_chunk(SessionCore& session, std::vector<Token> tokens,
                                            const Sha256Digest& content,
                                            const ChunkParams& params) {
  EngineCore& e = *session.engine;
  e.check_tokens(tokens);
  e.check_tokens(params.prefix);
  if (tokens.empty()) throw Error("register_chunk: the chunk has no tokens; expected at least one");
  ChunkSpec spec;
  spec.left = std::make_shared<const std::vector<Token>>(
      params.prefix.empty() && params.stub ? e.chunk_stub() : params.prefix);
  spec.key = {content, left_context_hash(*spec.left), e.fingerprint};
  spec.tokens = std::move(tokens);
  spec.name = params.name;
  check_length(e, std::ssize(*spec.left) + std::ssize(spec.tokens), "register_chunk");
  const TreeLock lock(e.tree_mutex);
  std::shared_ptr<ChunkEntry> entry = e.chunks->find(spec.key, *spec.left, spec.tokens);
  if (entry == nullptr) entry = e.chunks->insert(std::move(spec));
  return std::make_shared<const ChunkHold>(session.engine, std::move(entry));
}

}  // namespace

ChunkHold::ChunkHold(std::shared_ptr<EngineCore> of, std::shared_ptr<ChunkEntry> chunk)
    : engine(std::move(of)), entry(std::move(chunk)) {
  engine->chunks->use(*entry);
}

ChunkHold::~ChunkHold() {
  const TreeLock lock(engine->tree_mutex);
  engine->chunks->unuse(*entry);
}

std::int64_t Chunk::length() const {
  return hold_ == nullptr ? 0 : std::ssize(hold_->entry->tokens());
}

std::vector<Token> Chunk::tokens() const {
  if (hold_ == nullptr) return {};
  return {hold_->entry->tokens().begin(), hold_->entry->tokens().end()};
}

std::string Chunk::name() const {
  return hold_ == nullptr ? "" : hold_->entry->name();
}

std::string Chunk::key() const {
  return hold_ == nullptr ? "" : to_hex(hold_->entry->key().content);
}

ChunkCall::ChunkCall(SessionCore& session, std::shared_ptr<const ChunkHold> chunk,
                     std::stop_token cancel)
    : RequestsCall(session, std::move(cancel)), chunk_(std::move(chunk)) {
  const TreeLock lock(engine_.tree_mutex);
  ChunkIndex& chunks = *engine_.chunks;
  const ChunkState state = chunks.state(*chunk_->entry);
  if (state == ChunkState::kWarm) return;
  branch_ = begin_chunk(session, *chunk_->entry);
  state_ = state_of(branch_);
  hold(*state_);
  Wish wish = wish_for(*state_, state_->tip);
  wish.request.keep_logits = false;
  want(wish);
  if (state == ChunkState::kForgotten) chunks.insert_again(chunk_->entry);
  if (state != ChunkState::kFilling) chunks.begin_fill(*chunk_->entry);
  engine_.chunk_calls.push_back(this);
}

ChunkCall::~ChunkCall() {
  {
    const TreeLock lock(engine_.tree_mutex);
    std::erase(engine_.chunk_calls, this);
  }
  leave();  // before the branch goes
}

void ChunkCall::finish(Finish /*ended*/) {
  if (state_ == nullptr) return;
  const TreeLock lock(engine_.tree_mutex);
  std::erase(engine_.chunk_calls, this);
  ChunkEntry& entry = *chunk_->entry;
  if (engine_.chunks->state(entry) != ChunkState::kFilling) return;  // another has filled it
  if (engine_.tree->computed(state_->tip) == entry.length()) {
    engine_.chunks->end_fill(entry, state_->tip, elapsed_ms());
    session_->count_independent(*state_, entry.length());
    tell_chunk(*state_, std::ssize(entry.tokens()), elapsed_ms());
  } else if (std::ranges::none_of(engine_.chunk_calls, [&](const ChunkCall* other) {
               return &other->entry() == &entry;
             })) {
    engine_.chunks->give_up_fill(entry);
  }
}

Chunk register_chunk(SessionCore& session, std::vector<Token> tokens, const Sha256Digest& content,
                     const ChunkParams& params) {
  std::shared_ptr<const ChunkHold> hold = hold_chunk(session, std::move(tokens), content, params);
  bool is_warm = false;
  {
    const TreeLock lock(session.engine->tree_mutex);
    is_warm = session.engine->chunks->state(*hold->entry) == ChunkState::kWarm;
  }
  if (is_warm) return handle_of(std::move(hold));  // without waiting for a step
  return run_call<ChunkCall>(session, "register_chunk", std::move(hold), params.cancel)->result();
}

std::shared_ptr<ChunkCall> submit_chunk(SessionCore& session, std::vector<Token> tokens,
                                        const Sha256Digest& content, const ChunkParams& params) {
  return submit_call<ChunkCall>(session, hold_chunk(session, std::move(tokens), content, params),
                                params.cancel);
}

}  // namespace dendrite
