#include "engine/branches/session_core.h"

#include <algorithm>
#include <utility>

#include "core/rng.h"
#include "dendrite/error.h"
#include "engine/branches/draft_provider.h"
#include "engine/branches/tell.h"

namespace dendrite {
namespace {

/// Every so many forks a call is timed: reading the clock takes as long as a fork.
constexpr std::int64_t kForksPerSample = 16;

/// What two readings of the clock, one after the other, say that nothing took.
float clock_ns() {
  static const float cost = [] {
    float least = 1e9F;
    for (int i = 0; i < 64; ++i) {
      const auto begin = std::chrono::steady_clock::now();
      const std::chrono::duration<float, std::nano> took = std::chrono::steady_clock::now() - begin;
      least = std::min(least, took.count());
    }
    return least;
  }();
  return cost;
}

}  // namespace

SessionCore::SessionCore(std::shared_ptr<EngineCore> of, const SessionOptions& with)
    : engine(std::move(of)), options(with) {
  engine->enter(*this);
}

SessionCore::~SessionCore() {
  engine->leave(*this);
}

BranchState* SessionCore::make_branch(const Inherited& inherited) {
  BranchState* state = take_state(inherited);
  state->id = static_cast<BranchId>(next_id++);
  ++stats.branches_live;
  return state;
}

BranchState* SessionCore::take_state(const Inherited& inherited) {
  BranchState* state = free_list;
  if (state != nullptr) {
    free_list = state->next_free;
  } else {
    state = &slab.emplace_back();
  }
  state->session = this;
  state->next_free = nullptr;
  static_cast<Inherited&>(*state) = inherited;
  state->forks_made = 0;
  state->independent_tokens = 0;
  state->held_until = {};
  state->steps = 0;
  state->step_ms = 0;
  state->last_step = 0;
  state->tokens_generated = 0;
  state->tokens_computed = 0;
  state->tokens_regenerated = 0;
  state->finish = Finish::kRunning;
  state->calls = 0;
  state->orphaned = false;
  state->is_ahead = false;
  return state;
}

void SessionCore::give_state_back(BranchState& state) {
  state.rare.reset();
  state.next_free = free_list;
  free_list = &state;
}

Branch SessionCore::fork(BranchState& parent, const ForkOptions& fork_options) {
  if (stats.forks % kForksPerSample != 0) return untimed_fork(parent, fork_options);
  const auto begin = std::chrono::steady_clock::now();
  Branch child = untimed_fork(parent, fork_options);
  record_fork_time(begin, 1);
  return child;
}

void SessionCore::fork(BranchState& parent, int count, std::vector<Branch>& children) {
  const std::int64_t after = stats.forks + count;
  const std::int64_t next_timed =
      (stats.forks + kForksPerSample - 1) / kForksPerSample * kForksPerSample;
  if (next_timed >= after) {
    while (stats.forks < after) children.push_back(untimed_fork(parent, {}));
    return;
  }
  const auto begin = std::chrono::steady_clock::now();
  while (stats.forks < after) children.push_back(untimed_fork(parent, {}));
  record_fork_time(begin, count);
}

Branch SessionCore::untimed_fork(BranchState& parent, const ForkOptions& fork_options) {
  const auto length = static_cast<std::uint64_t>(engine->tree->length(parent.tip));
  return fork_from(parent, engine->tree->fork(parent.tip),
                   stream_of_fork(parent, length, fork_options));
}

std::uint64_t SessionCore::stream_of_fork(BranchState& parent, std::uint64_t length,
                                          const ForkOptions& fork_options) {
  if (fork_options.stream) return *fork_options.stream;
  return fork_stream(parent.stream, parent.forks_made++, length);
}

Branch SessionCore::child(BranchState& parent, const TokenLogprob& token) {
  const auto length = static_cast<std::uint64_t>(engine->tree->length(parent.tip));
  Branch child = fork_from(parent, engine->tree->fork(parent.tip),
                           token_stream(parent.stream, token.id, length));
  BranchState& state = *state_of(child);
  append(state, std::span(&token.id, 1));
  state.logprob += token.logprob;
  add_text(state, std::span(&token.id, 1));
  ++state.tokens_generated;
  ++stats.tokens_generated;
  return child;
}

Branch SessionCore::fork_at(BranchState& parent, std::int64_t length,
                            const ForkOptions& fork_options) {
  Branch child =
      fork_from(parent, engine->tree->at(parent.tip, length),
                stream_of_fork(parent, static_cast<std::uint64_t>(length), fork_options));
  BranchState& state = *state_of(child);
  state.prompt_length = std::min(state.prompt_length, length);
  state.prompt_shared =
      static_cast<std::int32_t>(std::min<std::int64_t>(state.prompt_shared, length));
  state.logprob = 0;
  state.text.known = false;
  if (state.rare.is_default()) return child;
  RareState& rare = state.rare.edit();
  rare.constraint.rewind(length);
  if (const auto& of = rare.composition; of != nullptr && of->length() > length) {
    rare.composition = std::make_shared<const CompositionRecord>(of->cut(length));
  }
  if (rare.heard.length > length) rare.heard = {};
  return child;
}

BranchState& SessionCore::require_live(const Branch& branch, const char* what) const {
  BranchState* state = state_of(branch);
  if (state == nullptr) {
    throw BranchEmpty(std::string(what) + ": a branch is empty; expected live branches");
  }
  if (state->session != this) {
    throw Error(std::string(what) + ": a branch belongs to another session");
  }
  return *state;
}

void SessionCore::find_text(BranchState& branch) const {
  if (branch.text.known) return;
  if (!engine->detokenizer || !engine->detokenizer->incremental_ok()) {
    branch.text = {};
    return;
  }
  std::int64_t length = 0;
  {
    const TreeLock lock(engine->tree_mutex);
    length = engine->tree->length(branch.tip);
  }
  const auto read = [&](std::size_t begin, std::span<Token> out) {
    const TreeLock lock(engine->tree_mutex);
    const std::int64_t from = branch.prompt_length + static_cast<std::int64_t>(begin);
    engine->tree->copy_tokens(branch.tip, from, from + std::ssize(out), out.data());
  };
  branch.text =
      engine->detokenizer->after(static_cast<std::size_t>(length - branch.prompt_length), read);
}

Matcher SessionCore::find_matcher(const BranchState& branch) const {
  std::shared_ptr<const ConstraintSpan> span;
  Matcher matcher;
  std::vector<Token> tokens;
  {
    const TreeLock lock(engine->tree_mutex);  // a call that it is in may go on meanwhile
    const ConstraintPlace& place = branch.rare->constraint;
    if (!place.holds()) return {};
    span = place.span;
    if (place.matcher.valid()) matcher = place.matcher;
    const std::int64_t begin = span->begin + matcher.length();
    const std::int64_t end = engine->tree->length(branch.tip);
    tokens.resize(static_cast<std::size_t>(end - begin));
    engine->tree->copy_tokens(branch.tip, begin, end, tokens.data());
  }
  if (!matcher.valid()) matcher = Matcher(span->grammar);
  for (const Token token : tokens) {
    if (!matcher.accept(token)) {
      throw Error("constraint: a branch has token " + std::to_string(token) +
                  ", which its constraint refuses");
    }
  }
  return matcher;
}

void SessionCore::add_text(BranchState& branch, std::span<const Token> tokens) const {
  if (!branch.text.known || !engine->detokenizer || !engine->detokenizer->incremental_ok()) return;
  for (const Token token : tokens) engine->detokenizer->push(branch.text, token);
}

Branch SessionCore::fork_from(const BranchState& parent, Tip tip, std::uint64_t stream) {
  BranchState* child = make_branch(parent);
  child->parent = parent.id;
  child->tip = std::move(tip);
  child->stream = stream;
  naive_pages += pages_of(child->tip);
  ++stats.forks;
  tell_fork(*child);
  engine->debug_check();
  return handle_of(child);
}

std::int64_t SessionCore::pages_of(const Tip& tip) const {
  return engine->tree->page_count(engine->tree->length(tip));
}

void SessionCore::prune(Branches branches) {
  for (std::size_t i = 0; i < branches.size(); ++i) {
    const BranchState* state = state_of(branches[i]);
    if (state != nullptr && state->session != this) {
      throw Error("prune: branch " + std::to_string(i) + " belongs to another session");
    }
  }
  // What a drop touches is in memory that nobody has used for a while: a state, which names a
  // segment, which names its pages. Each is asked for so many drops before it is needed.
  constexpr std::size_t kState = 24;
  constexpr std::size_t kSegment = 16;
  constexpr std::size_t kPages = 8;
  const auto ahead = [&](std::size_t i) {
    return i < branches.size() ? state_of(branches[i]) : nullptr;
  };
  for (std::size_t i = 0; i < branches.size(); ++i) {
    if (const BranchState* state = ahead(i + kState)) {
      __builtin_prefetch(state, 1);
      __builtin_prefetch(&state->tip, 1);
    }
    if (const BranchState* state = ahead(i + kSegment)) KvTree::prefetch(state->tip);
    if (const BranchState* state = ahead(i + kPages)) KvTree::prefetch_pages(state->tip);
    BranchState*& state = Internals::state(branches[i]);
    if (state != nullptr) drop(std::exchange(state, nullptr));
  }
  if (stats.branches_live == 0) self.reset();
  engine->debug_check();
}

void SessionCore::drop(BranchState* state) {
  if (state->calls > 0) {
    state->orphaned = true;
    return;
  }
  if (state->ahead != nullptr) drop_ahead(*state);
  if (state->exact != nullptr) drop_exact(*state);
  const std::int64_t length = engine->tree->length(state->tip);
  naive_pages -= engine->tree->page_count(length);
  const std::int32_t used = engine->tree->pool().used_pages();
  engine->tree->drop(state->tip);
  tell_prune(*state, length, used);
  give_state_back(*state);
  ++stats.prunes;
  --stats.branches_live;
}

void SessionCore::append(BranchState& branch, std::span<const Token> tokens) {
  if (branch.ahead != nullptr) drop_ahead(branch);
  naive_pages -= pages_of(branch.tip);
  engine->tree->append(branch.tip, tokens);
  naive_pages += pages_of(branch.tip);
  engine->debug_check();
}

void SessionCore::move_to(BranchState& branch, const Tip& tip, std::int64_t length) {
  naive_pages -= pages_of(branch.tip);
  Tip old = std::exchange(branch.tip, engine->tree->at(tip, length));
  engine->tree->drop(old);
  naive_pages += pages_of(branch.tip);
}

std::uint64_t SessionCore::stream_of_prompt(std::uint64_t tokens_hash) {
  return prompt_stream(options.seed, options.stream, tokens_hash, prompts[tokens_hash]++);
}

Branch SessionCore::begin_at(Tip tip, const Inherited& inherited) {
  BranchState* state = make_branch(inherited);
  state->parent = BranchId::kNone;
  state->tip = std::move(tip);
  naive_pages += pages_of(state->tip);
  if (self == nullptr) self = shared_from_this();
  return handle_of(state);
}

void SessionCore::count_independent(BranchState& branch, std::int64_t tokens) {
  if (tokens <= branch.independent_tokens) return;
  stats.tokens_independent += tokens - branch.independent_tokens;
  branch.independent_tokens = static_cast<std::int32_t>(tokens);
}

void SessionCore::record_fork_time(std::chrono::steady_clock::time_point begin, int forks) {
  const std::chrono::duration<float, std::nano> took = std::chrono::steady_clock::now() - begin;
  constexpr std::size_t kSamples = 1024;
  constexpr float kLeast = 1;  // forks take some time, whatever a coarse clock says
  const ForkTime time{std::max(kLeast, took.count() - clock_ns()) / static_cast<float>(forks),
                      forks};
  if (fork_samples.size() < kSamples) {
    fork_samples.push_back(time);
  } else {
    fork_samples[next_fork_sample++ % kSamples] = time;
  }
}

double SessionCore::fork_ns() const {
  std::vector<ForkTime> times = fork_samples;
  std::ranges::sort(times, {}, &ForkTime::ns);
  std::int64_t forks = 0;
  for (const ForkTime& time : times) forks += time.forks;
  std::int64_t behind = 0;
  for (const ForkTime& time : times) {
    behind += time.forks;
    if (2 * behind >= forks) return time.ns;
  }
  return 0;
}

void SessionCore::record_kv_bytes() {
  const KvShape& shape = engine->store->shape();
  const std::int64_t naive = naive_pages * shape.page_tokens * shape.token_bytes();
  // Counting each page once walks all branches: only when they have grown by a twentieth.
  if (naive * 20 <= stats.kv_bytes_naive * 21) return;
  std::vector<const Tip*> tips;
  for (const BranchState& branch : slab) {
    if (!branch.tip.empty()) tips.push_back(&branch.tip);
  }
  stats.kv_bytes_naive = naive;
  stats.kv_bytes_unique = engine->tree->usage(tips).unique_bytes;
}

/// Called when all that can be freed has been.
void SessionCore::record_shortage(const Tip& tip) {
  KvTree& tree = *engine->tree;
  std::vector<const Tip*> own = {&tip};
  tree.for_each_source_of(tip, [&](const Tip& source) { own.push_back(&source); });
  std::vector<const Tip*> branches = own;
  std::vector<const Tip*> held = own;
  std::vector<const Tip*> composed = own;
  const EngineTime now = engine->now();
  for (const SessionCore* session : engine->sessions) {
    for (const BranchState& branch : session->slab) {
      if (branch.tip.empty()) continue;
      branches.push_back(&branch.tip);
      if (branch.held_until > now) {
        held.push_back(&branch.tip);
        tree.for_each_source_of(branch.tip, [&](const Tip& source) { held.push_back(&source); });
      }
      if (tree.moves(branch.tip) > 0) composed.push_back(&branch.tip);
    }
  }
  KvShortage report;
  report.tokens = tree.length(tip);
  report.pages_needed = tree.pages_needed(tip);
  report.pages_free = tree.pool().free_pages();
  report.pages_total = tree.pool().size();
  report.pages_held = tree.usage(own).unique_pages;
  const auto beside = [&](std::span<const Tip* const> tips) {
    return tree.usage(tips).unique_pages - report.pages_held;
  };
  report.pages_of_branches = beside(branches);
  report.pages_on_hold = beside(held);
  report.pages_of_compositions = beside(composed);
  std::vector<const Tip*> known = branches;
  engine->chunks->collect_tips(known);
  report.pages_of_chunks = beside(known) - report.pages_of_branches;
  tree.for_each_source([&](const Tip& source) { known.push_back(&source); });
  report.pages_of_sources = beside(known) - report.pages_of_branches - report.pages_of_chunks;
  report.pages_of_calls = tree.pool().used_pages() - report.pages_held - report.pages_of_branches -
                          report.pages_of_chunks - report.pages_of_sources;
  report.page_tokens = tree.page_tokens();
  shortage = report;
}

void SessionCore::begin_call() {
  if (calls++ == 0) calls_began = std::chrono::steady_clock::now();
}

void SessionCore::end_call() {
  const double spent = milliseconds_spent();
  if (--calls == 0) spent_ms = spent;
}

double SessionCore::milliseconds_spent() const {
  if (calls == 0) return spent_ms;
  const std::chrono::duration<double, std::milli> since =
      std::chrono::steady_clock::now() - calls_began;
  return spent_ms + since.count();
}

Finish SessionCore::limit() const {
  const Budget& budget = options.budget;
  if (budget.tokens > 0 && spent_tokens() >= budget.tokens) return Finish::kBudget;
  if (budget.milliseconds > 0 && milliseconds_spent() >= budget.milliseconds) {
    return Finish::kBudget;
  }
  return Finish::kRunning;
}

}  // namespace dendrite
