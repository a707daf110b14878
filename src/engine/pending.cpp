#include "dendrite/pending.h"

#include <algorithm>
#include <utility>

#include "dendrite/error.h"
#include "engine/calls/decode_call.h"
#include "engine/calls/expand_call.h"
#include "engine/calls/prefill_call.h"
#include "engine/calls/score_call.h"
#include "engine/context/chunk_call.h"
#include "engine/context/compose_call.h"
#include "engine/loop/step_loop.h"

namespace dendrite {
namespace {

Call& require(const std::shared_ptr<Call>& call) {
  if (call == nullptr) {
    throw Error("the handle of a call is empty (moved from); expected one of a submitted call");
  }
  return *call;
}

StepLoop& loop_of(const Call& call) {
  return *call.session().engine->loop;
}

EngineTime after(std::chrono::nanoseconds timeout) {
  const EngineTime now = std::chrono::steady_clock::now();
  return now + std::min<std::chrono::nanoseconds>(timeout, EngineTime::max() - now);
}

}  // namespace

Pending::Pending(std::shared_ptr<Call> call) : call_(std::move(call)) {}

Pending::~Pending() {
  if (call_ != nullptr) loop_of(*call_).abandon(call_);
}

Pending& Pending::operator=(Pending&& other) noexcept {
  std::swap(call_, other.call_);
  return *this;
}

bool Pending::done() const {
  const Call& call = require(call_);
  return loop_of(call).has_ended(call);
}

void Pending::wait() {
  Call& call = require(call_);
  loop_of(call).wait(call);
}

bool Pending::wait_for(std::chrono::nanoseconds timeout) {
  return wait_until(after(timeout));
}

bool Pending::wait_until(std::chrono::steady_clock::time_point time) {
  Call& call = require(call_);
  return loop_of(call).wait(call, time);
}

void Pending::cancel() {
  require(call_).cancel();
}

void Pending::on_done(std::function<void()> callback) {
  Call& call = require(call_);
  loop_of(call).on_done(call, std::move(callback));
}

void Pending::wait_for_result() {
  wait();
  loop_of(*call_).rethrow(*call_);
  if (!call_->take_result()) {
    throw Error("get: the result was taken already; expected one get() a call");
  }
}

PendingDecode::PendingDecode(const std::shared_ptr<DecodeCall>& call) : Pending(call) {}

DecodeCall& PendingDecode::decode() const {
  return static_cast<DecodeCall&>(require(call_));
}

std::vector<StreamToken> PendingDecode::take() {
  std::vector<StreamToken> tokens = decode().take_tokens();
  if (held_back_.empty()) return tokens;
  std::vector<StreamToken> all(std::make_move_iterator(held_back_.rbegin()),
                               std::make_move_iterator(held_back_.rend()));
  held_back_.clear();
  std::ranges::move(tokens, std::back_inserter(all));
  return all;
}

std::optional<StreamToken> PendingDecode::next() {
  DecodeCall& call = decode();
  StepLoop& loop = loop_of(call);
  while (held_back_.empty()) {
    const std::uint64_t turns = loop.turns(call);
    const bool ended = loop.has_ended(call);
    held_back_ = call.take_tokens();
    std::ranges::reverse(held_back_);
    if (!held_back_.empty()) break;
    if (ended) {
      loop.rethrow(call);
      return std::nullopt;
    }
    loop.wait_for_turn(call, turns);
  }
  StreamToken token = std::move(held_back_.back());
  held_back_.pop_back();
  return token;
}

bool PendingDecode::wait_for_step(std::chrono::nanoseconds timeout) {
  DecodeCall& call = decode();
  StepLoop& loop = loop_of(call);
  return loop.wait_for_turn(call, loop.turns(call), after(timeout));
}

std::span<Branch> PendingDecode::branches() {
  return decode().branches();
}

std::vector<Generation> PendingDecode::get() {
  wait_for_result();
  return decode().results();
}

std::vector<Branch> PendingDecode::release() {
  wait();
  return decode().release();
}

PendingPrefill::PendingPrefill(const std::shared_ptr<PrefillCall>& call) : Pending(call) {}

Branch PendingPrefill::get() {
  wait_for_result();
  return static_cast<PrefillCall&>(*call_).result();
}

PendingScore::PendingScore(const std::shared_ptr<ScoreCall>& call) : Pending(call) {}

std::vector<std::vector<Score>> PendingScore::get() {
  wait_for_result();
  return static_cast<ScoreCall&>(*call_).result();
}

PendingTokens::PendingTokens(const std::shared_ptr<ExpandCall>& call) : Pending(call) {}

std::vector<std::vector<TokenLogprob>> PendingTokens::get() {
  wait_for_result();
  return static_cast<ExpandCall&>(*call_).result();
}

PendingCompose::PendingCompose(const std::shared_ptr<ComposeCall>& call) : Pending(call) {}

Composed PendingCompose::get() {
  wait_for_result();
  return std::move(static_cast<ComposeCall&>(*call_).result().front());
}

PendingJoins::PendingJoins(const std::shared_ptr<ComposeCall>& call) : Pending(call) {}

std::vector<Composed> PendingJoins::get() {
  wait_for_result();
  return static_cast<ComposeCall&>(*call_).result();
}

PendingChunk::PendingChunk(const std::shared_ptr<ChunkCall>& call) : Pending(call) {}

Chunk PendingChunk::get() {
  wait_for_result();
  return static_cast<ChunkCall&>(*call_).result();
}

}  // namespace dendrite
