// A branch's handle.
#include <algorithm>
#include <cmath>

#include "dendrite/error.h"
#include "dendrite/session.h"
#include "engine/calls/distribution_call.h"
#include "engine/calls/prompt_branch.h"
#include "engine/calls/score_call.h"
#include "engine/loop/run_call.h"

namespace dendrite {
namespace {

BranchState& require(BranchState* state, const char* what) {
  if (state == nullptr) {
    throw BranchEmpty(std::string(what) +
                      ": the branch is empty (moved from or pruned); expected a live one");
  }
  return *state;
}

TreeMutex& tree_mutex(const BranchState& state) {
  return state.session->engine->tree_mutex;
}

/// All from position `begin` on, which counts as 0 where it is less.
std::vector<Token> tokens_from(const BranchState& state, std::int64_t begin) {
  const TreeLock lock(tree_mutex(state));
  const KvTree& tree = *state.session->engine->tree;
  return tree.tokens(state.tip, begin, tree.length(state.tip));
}

}  // namespace

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
  session.fork(parent, count, children);
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
  append(encode(text));
}

void Branch::append(std::span<const Token> tokens) {
  BranchState& state = require(state_, "append");
  state.session->engine->check_tokens(tokens);
  Matcher matcher = state.session->find_matcher(state);
  for (std::size_t i = 0; matcher.valid() && i < tokens.size(); ++i) {
    if (matcher.accept(tokens[i])) continue;
    throw Error("append: the branch's constraint refuses token " + std::to_string(i) + " (id " +
                std::to_string(tokens[i]) + "); expected tokens that can follow, see unconstrain");
  }
  {
    const TreeLock lock(tree_mutex(state));
    Call::check_free(state, "append");
    const std::int64_t length = state.session->engine->tree->length(state.tip);
    check_positions(*state.session->engine, length + std::ssize(tokens), "append");
    state.session->append(state, tokens);
    if (matcher.valid()) state.rare.edit().constraint.matcher = matcher;
  }
  state.session->add_text(state, tokens);  // what is generated next continues it
}

void Branch::constrain(const Constraint& constraint) {
  BranchState& state = require(state_, "constrain");
  EngineCore& engine = *state.session->engine;
  const Matcher start(engine.compiled(constraint));
  const TreeLock lock(engine.tree_mutex);
  Call::check_free(state, "constrain");
  if (state.ahead != nullptr) state.session->drop_ahead(state);
  state.rare.edit().constraint.begin(engine.tree->length(state.tip), start);
}

bool Branch::constrain_from(const Constraint& constraint, std::int64_t begin) {
  BranchState& state = require(state_, "constrain_from");
  EngineCore& engine = *state.session->engine;
  if (begin < 0 || begin > length()) {
    throw Error("constrain_from: begin is " + std::to_string(begin) + "; expected 0 to " +
                std::to_string(length()) + ", the branch's length");
  }
  Matcher matcher(engine.compiled(constraint));
  try {
    for (const Token token : tokens_from(state, begin)) {
      if (!matcher.accept(token)) return false;
    }
  } catch (const GrammarLimit&) {
    return false;
  }
  const TreeLock lock(engine.tree_mutex);
  Call::check_free(state, "constrain_from");
  if (state.ahead != nullptr) state.session->drop_ahead(state);
  ConstraintPlace& place = state.rare.edit().constraint;
  place.rewind(begin);
  place.begin(begin, matcher);
  return true;
}

void Branch::unconstrain() {
  BranchState& state = require(state_, "unconstrain");
  EngineCore& engine = *state.session->engine;
  const TreeLock lock(engine.tree_mutex);
  Call::check_free(state, "unconstrain");
  if (state.ahead != nullptr) state.session->drop_ahead(state);
  if (!state.rare.is_default()) {
    state.rare.edit().constraint.end(engine.tree->length(state.tip));
  }
}

std::optional<Constraint> Branch::constraint() const {
  const BranchState& state = require(state_, "constraint");
  const TreeLock lock(tree_mutex(state));
  if (!state.rare->constraint.holds()) return std::nullopt;
  return state.rare->constraint.span->grammar->constraint();
}

std::optional<std::int64_t> Branch::constraint_begin() const {
  const BranchState& state = require(state_, "constraint_begin");
  const TreeLock lock(tree_mutex(state));
  if (!state.rare->constraint.holds()) return std::nullopt;
  return state.rare->constraint.span->begin;
}

bool Branch::is_accepted() const {
  const BranchState& state = require(state_, "is_accepted");
  Matcher matcher = state.session->find_matcher(state);
  return !matcher.valid() || matcher.is_accepting();
}

std::optional<std::vector<Token>> Branch::allowed_tokens() const {
  const BranchState& state = require(state_, "allowed_tokens");
  std::vector<Token> allowed;
  try {
    Matcher matcher = state.session->find_matcher(state);
    if (!matcher.valid()) return std::nullopt;
    const MaskRef mask = matcher.mask();
    allowed.reserve(static_cast<std::size_t>(mask->count()));
    const auto vocab = static_cast<Token>(state.session->engine->vocab());
    for (Token token = 0; token < vocab; ++token) {
      if (mask->allows(token)) allowed.push_back(token);
    }
  } catch (const GrammarLimit&) {  // nothing is drawn there, either
    allowed.clear();
  }
  return allowed;
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
  return tokens_from(require(state_, "tokens"), 0);
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
  return state.session->engine->require_tokenizer().decode(tokens_from(state, state.prompt_length),
                                                           true);
}

std::vector<Token> Branch::encode(std::string_view text) const {
  const BranchState& state = require(state_, "encode");
  const Tokenizer& tokenizer = state.session->engine->require_tokenizer();
  return tokenizer.encode_after(tokens_from(state, length() - Tokenizer::kBefore), text);
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
  stats.tokens_regenerated = state.tokens_regenerated;
  stats.prompt_shared = state.prompt_shared;
  stats.steps = state.steps;
  stats.milliseconds = state.step_ms;
  const Tip* tips[] = {&state.tip};
  stats.pages = tree.usage(tips).unique_pages;
  stats.own_pages = tree.own_pages(state.tip);
  stats.shared_pages = stats.pages - stats.own_pages;
  return stats;
}

std::vector<Score> Branch::score(const std::vector<std::string>& continuations,
                                 const ScoreParams& params) {
  require(state_, "score");
  return score_tokens(encode_all(std::span(this, 1), continuations).front(), params);
}

std::vector<Score> Branch::score_tokens(const std::vector<std::vector<Token>>& continuations,
                                        const ScoreParams& params) {
  SessionCore& session = *require(state_, "score").session;
  const Branch* self = this;
  const auto call = run_call<ScoreCall>(session, "score", std::span(&self, 1),
                                        std::span(&continuations, 1), params);
  return std::move(call->result().front());
}

Distribution Branch::distribution() {
  SessionCore& session = *require(state_, "distribution").session;
  const Branch* self = this;
  return run_call<DistributionCall>(session, "distribution", std::span(&self, 1), std::stop_token{})
      ->result()
      .front();
}

std::optional<std::size_t> Branch::select(const std::vector<std::string>& options) {
  if (options.empty()) throw Error("select: no options; expected at least one");
  const std::vector<Score> scores = score(options);
  std::size_t best = 0;
  for (std::size_t i = 1; i < scores.size(); ++i) {
    if (scores[i].logprob > scores[best].logprob) best = i;
  }
  if (std::isnan(scores[best].logprob)) return std::nullopt;
  if (std::isinf(scores[best].logprob)) {
    state_->finish = Finish::kDeadEnd;
    return std::nullopt;
  }
  append(options[best]);
  const TreeLock lock(tree_mutex(*state_));
  state_->logprob += scores[best].logprob;
  return best;
}

}  // namespace dendrite
