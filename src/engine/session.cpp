#include "dendrite/session.h"

#include <algorithm>
#include <cmath>

#include "dendrite/error.h"
#include "engine/decode_call.h"
#include "engine/expand_call.h"
#include "engine/prefill_call.h"
#include "engine/score_call.h"
#include "engine/session_core.h"
#include "engine/snapshot.h"
#include "engine/step_loop.h"

namespace dendrite {
namespace {

BranchState& require(BranchState* state, const char* what) {
  if (state == nullptr) {
    throw Error(std::string(what) +
                ": the branch is empty (moved from or pruned); expected a live one");
  }
  return *state;
}

std::vector<std::vector<Token>> encode_all(const EngineCore& engine,
                                           const std::vector<std::string>& texts) {
  const Tokenizer& tokenizer = engine.require_tokenizer();
  std::vector<std::vector<Token>> tokens;
  for (const std::string& text : texts) tokens.push_back(tokenizer.encode(text, false));
  return tokens;
}

std::shared_ptr<EngineCore> require_weights(const Engine& engine) {
  if (engine.core()->model == nullptr) {
    throw Error("session: the engine was loaded without weights; expected EngineOptions::weights");
  }
  return engine.core();
}

/// A call whose caller waits for it.
template <typename C, typename... Arguments>
std::shared_ptr<C> run_call(SessionCore& session, const char* what, Arguments&&... arguments) {
  StepLoop& loop = *session.engine->loop;
  loop.refuse_in_callback(what);
  auto call = std::make_shared<C>(session, std::forward<Arguments>(arguments)...);
  loop.run(call);
  return call;
}

/// One whose caller does not.
template <typename C, typename... Arguments>
std::shared_ptr<C> submit_call(SessionCore& session, Arguments&&... arguments) {
  auto call = std::make_shared<C>(session, std::forward<Arguments>(arguments)...);
  session.engine->loop->join(call, true);
  return call;
}

TreeMutex& tree_mutex(const BranchState& state) {
  return state.session->engine->tree_mutex;
}

}  // namespace

const char* name_of(Finish finish) {
  switch (finish) {
    case Finish::kRunning:
      return "running";
    case Finish::kLength:
      return "length";
    case Finish::kStop:
      return "stop";
    case Finish::kEos:
      return "eos";
    case Finish::kBudget:
      return "budget";
    case Finish::kCancelled:
      return "cancelled";
    case Finish::kAbandoned:
      return "abandoned";
  }
  return "?";
}

std::string KvShortage::message() const {
  const auto pages = [](std::int64_t count) {
    return std::to_string(count) + (count == 1 ? " page" : " pages");
  };
  std::string text = "KV pages ran out: a branch of ";
  text += std::to_string(tokens) + " tokens holds " + pages(pages_held) + " and needs " +
          std::to_string(pages_needed) + " more; of " + pages(pages_total) + " (" +
          std::to_string(page_tokens) + " tokens each) " + std::to_string(pages_free) +
          " are free, " + std::to_string(pages_of_branches) + " are held by other branches (" +
          std::to_string(pages_on_hold) + " on hold) and " + std::to_string(pages_of_calls) +
          " by calls in progress; ";
  if (pages_held + pages_needed > pages_total) return text + "make the pool larger (kv_tokens)";
  if (pages_of_calls > 0)
    return text + "score fewer continuations at once, or make the pool larger";
  if (pages_on_hold > 0) {
    return text + "release or prune branches that are on hold, or make the pool larger (kv_tokens)";
  }
  return text + "prune branches, or make the pool larger (kv_tokens)";
}

// --- Branch

BranchId Branch::id() const {
  return state_ == nullptr ? BranchId::kNone : state_->id;
}

BranchId Branch::parent() const {
  return require(state_, "parent").parent;
}

Branch Branch::fork(const ForkOptions& options) {
  BranchState& parent = require(state_, "fork");
  SessionCore& session = *parent.session;
  const TreeLock lock(session.engine->tree_mutex);
  return session.fork(parent, options);
}

std::vector<Branch> Branch::fork(int count) {
  BranchState& parent = require(state_, "fork");
  if (count < 0) throw Error("fork: count is " + std::to_string(count) + "; expected >= 0");
  SessionCore& session = *parent.session;
  std::vector<Branch> children;
  children.reserve(static_cast<std::size_t>(count));
  if (count == 0) return children;
  const TreeLock lock(session.engine->tree_mutex);
  for (int i = 0; i < count; ++i) children.push_back(session.fork(parent, {}));
  return children;
}

Branch Branch::at(std::int64_t length, const ForkOptions& options) {
  BranchState& parent = require(state_, "at");
  SessionCore& session = *parent.session;
  EngineCore& engine = *session.engine;
  const TreeLock lock(engine.tree_mutex);
  const std::int64_t have = engine.tree->length(parent.tip);
  if (length <= 0 || length > have) {
    throw Error("at: length is " + std::to_string(length) + "; expected 1 to " +
                std::to_string(have) + ", the branch's length");
  }
  return session.fork_at(parent, length, options);
}

void Branch::append(std::string_view text) {
  const BranchState& state = require(state_, "append");
  append(state.session->engine->require_tokenizer().encode(text, false));
}

void Branch::append(std::span<const Token> tokens) {
  BranchState& state = require(state_, "append");
  state.session->engine->check_tokens(tokens);
  {
    const TreeLock lock(tree_mutex(state));
    Call::check_free(state, "append");
    state.session->append(state, tokens);
  }
  state.session->add_text(state, tokens);  // what is generated next continues it
}

void Branch::prune() {
  if (state_ == nullptr) return;
  SessionCore* session = state_->session;
  std::shared_ptr<SessionCore> last;  // released after the lock, which it may own
  {
    const TreeLock lock(session->engine->tree_mutex);
    session->drop(state_);
    session->engine->debug_check();
    if (session->stats.branches_live == 0) last = std::move(session->self);
  }
  state_ = nullptr;
}

void Branch::set_priority(int priority) {
  BranchState& state = require(state_, "set_priority");
  const TreeLock lock(tree_mutex(state));
  state.priority = priority;
}

int Branch::priority() const {
  const BranchState& state = require(state_, "priority");
  const TreeLock lock(tree_mutex(state));
  return state.priority;
}

void Branch::hold(std::chrono::milliseconds limit) {
  BranchState& state = require(state_, "hold");
  if (limit <= std::chrono::milliseconds(0)) {
    throw Error("hold: limit is " + std::to_string(limit.count()) + " ms; expected > 0");
  }
  const TreeLock lock(tree_mutex(state));
  const EngineTime now = state.session->engine->now();
  const auto longest = std::chrono::floor<std::chrono::milliseconds>(EngineTime::max() - now);
  state.held_until = now + std::min(limit, longest);
}

void Branch::release() {
  BranchState& state = require(state_, "release");
  const TreeLock lock(tree_mutex(state));
  state.held_until = {};
}

std::int64_t Branch::length() const {
  const BranchState& state = require(state_, "length");
  const TreeLock lock(tree_mutex(state));
  return state.session->engine->tree->length(state.tip);
}

std::vector<Token> Branch::tokens() const {
  const BranchState& state = require(state_, "tokens");
  const TreeLock lock(tree_mutex(state));
  return state.session->engine->tree->tokens(state.tip);
}

Token Branch::last_token() const {
  const BranchState& state = require(state_, "last_token");
  const TreeLock lock(tree_mutex(state));
  const KvTree& tree = *state.session->engine->tree;
  return tree.token(state.tip, tree.length(state.tip) - 1);
}

std::int64_t Branch::prompt_length() const {
  return require(state_, "prompt_length").prompt_length;
}

std::string Branch::text() const {
  const BranchState& state = require(state_, "text");
  const std::vector<Token> all = tokens();
  const std::size_t begin = std::min(all.size(), static_cast<std::size_t>(state.prompt_length));
  return state.session->engine->require_tokenizer().decode(std::span(all).subspan(begin), true);
}

double Branch::logprob() const {
  return require(state_, "logprob").logprob;
}
Finish Branch::finish() const {
  return require(state_, "finish").finish;
}
std::uint64_t Branch::stream() const {
  return require(state_, "stream").stream;
}

BranchStats Branch::stats() const {
  const BranchState& state = require(state_, "stats");
  const TreeLock lock(tree_mutex(state));
  KvTree& tree = *state.session->engine->tree;
  BranchStats stats;
  stats.tokens_generated = state.tokens_generated;
  stats.tokens_computed = state.tokens_computed;
  stats.steps = state.steps;
  stats.milliseconds = state.step_ms;
  const Tip* tips[] = {&state.tip};
  stats.pages = tree.usage(tips).unique_pages;
  stats.own_pages = tree.own_pages(state.tip);
  stats.shared_pages = stats.pages - stats.own_pages;
  return stats;
}

std::vector<Score> Branch::score(const std::vector<std::string>& continuations) {
  const BranchState& state = require(state_, "score");
  return score_tokens(encode_all(*state.session->engine, continuations));
}

std::vector<Score> Branch::score_tokens(const std::vector<std::vector<Token>>& continuations) {
  SessionCore& session = *require(state_, "score").session;
  const auto call =
      run_call<ScoreCall>(session, "score", std::span(this, 1), continuations, std::stop_token{});
  return std::move(call->result().front());
}

std::optional<std::size_t> Branch::select(const std::vector<std::string>& options) {
  if (options.empty()) throw Error("select: no options; expected at least one");
  const std::vector<Score> scores = score(options);
  std::size_t best = 0;
  for (std::size_t i = 1; i < scores.size(); ++i) {
    if (scores[i].logprob > scores[best].logprob) best = i;
  }
  if (std::isnan(scores[best].logprob)) return std::nullopt;
  append(options[best]);
  const TreeLock lock(tree_mutex(*state_));
  state_->logprob += scores[best].logprob;
  return best;
}

// --- Session

Session::Session(const Engine& engine, const SessionOptions& options)
    : core_(std::make_shared<SessionCore>(require_weights(engine), options)) {
  if (!(options.weight > 0)) {
    throw Error("session: weight is " + std::to_string(options.weight) + "; expected > 0");
  }
}

Branch Session::prefill(std::string_view text, const PrefillOptions& options) {
  return prefill(core_->engine->require_tokenizer().encode(text, options.add_special), options);
}

Branch Session::prefill(std::span<const Token> tokens, const PrefillOptions& options) {
  return run_call<PrefillCall>(*core_, "prefill", tokens, options)->result();
}

std::vector<Generation> Session::decode(std::span<Branch> branches, const DecodeParams& params,
                                        std::span<Branch> ahead) {
  return run_call<DecodeCall>(*core_, "decode", branches, params, ahead)->results();
}

Generation Session::decode(Branch& branch, const DecodeParams& params) {
  return std::move(decode(std::span(&branch, 1), params).front());
}

std::optional<Token> Session::decode_step(Branch& branch, const DecodeParams& params) {
  DecodeParams one = params;
  one.max_tokens = 1;
  const Generation out = decode(branch, one);
  return out.ids.empty() ? std::nullopt : std::optional<Token>(out.ids.front());
}

std::vector<std::vector<Score>> Session::score(std::span<Branch> branches,
                                               const std::vector<std::string>& continuations,
                                               std::stop_token cancel) {
  return score_tokens(branches, encode_all(*core_->engine, continuations), std::move(cancel));
}

std::vector<std::vector<Score>> Session::score_tokens(
    std::span<Branch> branches, const std::vector<std::vector<Token>>& continuations,
    std::stop_token cancel) {
  return run_call<ScoreCall>(*core_, "score", branches, continuations, std::move(cancel))->result();
}

std::vector<std::vector<TokenLogprob>> Session::next_tokens(std::span<const Branch> branches,
                                                            const ExpandParams& params) {
  return run_call<ExpandCall>(*core_, "next_tokens", branches, params)->result();
}

std::vector<std::vector<Branch>> Session::children(
    std::span<const Branch> branches, std::span<const std::vector<TokenLogprob>> tokens) {
  return core_->children(branches, tokens);
}

std::vector<std::vector<Branch>> Session::expand(std::span<Branch> branches,
                                                 const ExpandParams& params) {
  return children(branches, next_tokens(branches, params));
}

PendingDecode Session::submit_decode(std::vector<Branch> branches, const DecodeParams& params) {
  return PendingDecode(submit_call<DecodeCall>(*core_, std::move(branches), params));
}

PendingDecode Session::submit_decode(Branch branch, const DecodeParams& params) {
  std::vector<Branch> branches;
  branches.push_back(std::move(branch));
  return submit_decode(std::move(branches), params);
}

PendingPrefill Session::submit_prefill(std::string_view text, const PrefillOptions& options) {
  return submit_prefill(core_->engine->require_tokenizer().encode(text, options.add_special),
                        options);
}

PendingPrefill Session::submit_prefill(std::span<const Token> tokens,
                                       const PrefillOptions& options) {
  return PendingPrefill(submit_call<PrefillCall>(*core_, tokens, options));
}

PendingScore Session::submit_score(std::span<Branch> branches,
                                   const std::vector<std::string>& continuations) {
  return submit_score_tokens(branches, encode_all(*core_->engine, continuations));
}

PendingScore Session::submit_score_tokens(std::span<Branch> branches,
                                          const std::vector<std::vector<Token>>& continuations) {
  return PendingScore(submit_call<ScoreCall>(*core_, branches, continuations, std::stop_token{}));
}

void Session::prune(std::span<Branch> branches) {
  const TreeLock lock(core_->engine->tree_mutex);
  core_->prune(branches);
}

void Session::save(const std::filesystem::path& file, std::span<const Branch> branches,
                   std::string_view attachment) {
  save_session(*core_, file, branches, attachment);
}

Engine Session::engine() const {
  return Engine::from(core_->engine);
}

std::optional<KvShortage> Session::shortage() const {
  const TreeLock lock(core_->engine->tree_mutex);
  return core_->shortage;
}

Stats Session::stats() const {
  const TreeLock lock(core_->engine->tree_mutex);
  Stats stats = core_->stats;
  const KvTree& tree = *core_->engine->tree;
  stats.pages_total = tree.pool().size();
  stats.pages_used = tree.pool().used_pages();
  std::vector<float> samples = core_->fork_samples;
  if (!samples.empty()) {
    const auto middle = samples.begin() + static_cast<std::ptrdiff_t>(samples.size() / 2);
    std::nth_element(samples.begin(), middle, samples.end());
    stats.fork_ns = *middle;
  }
  return stats;
}

}  // namespace dendrite
