#include "engine/session_core.h"

#include <algorithm>

#include "core/rng.h"
#include "dendrite/error.h"

namespace dendrite {

BranchState* SessionCore::make_branch() {
  BranchState* state = free_list;
  if (state != nullptr) {
    free_list = state->next_free;
  } else {
    state = &slab.emplace_back();
  }
  state->session = this;
  state->next_free = nullptr;
  state->id = static_cast<BranchId>(next_id++);
  state->forks_made = 0;
  state->independent_tokens = 0;
  state->logprob = 0;
  state->text = DetokState{};
  state->finish = Finish::kRunning;
  ++stats.branches_live;
  return state;
}

Branch SessionCore::fork(BranchState& parent) {
  // Every so many forks one is timed: reading the clock takes as long as the fork itself.
  constexpr std::int64_t kForksPerSample = 16;
  if (stats.forks % kForksPerSample != 0) return untimed_fork(parent);
  const auto begin = std::chrono::steady_clock::now();
  Branch child = untimed_fork(parent);
  const std::chrono::duration<float, std::nano> took = std::chrono::steady_clock::now() - begin;
  record_fork_time(took.count());
  return child;
}

Branch SessionCore::untimed_fork(BranchState& parent) {
  Branch child = fork_from(parent, engine->tree->fork(parent.tip));
  child.state()->logprob = parent.logprob;
  child.state()->text = parent.text;
  return child;
}

Branch SessionCore::fork_at(BranchState& parent, std::int64_t length) {
  Branch child = fork_from(parent, engine->tree->at(parent.tip, length));
  BranchState& state = *child.state();
  state.prompt_length = std::min(state.prompt_length, length);
  if (engine->detokenizer && length > state.prompt_length) {
    const std::vector<Token> tokens = engine->tree->tokens(state.tip);
    for (std::int64_t i = state.prompt_length; i < length; ++i) {
      engine->detokenizer->push(state.text, tokens[static_cast<std::size_t>(i)]);
    }
  }
  return child;
}

Branch SessionCore::fork_from(BranchState& parent, Tip tip) {
  const std::int64_t length = engine->tree->length(tip);
  BranchState* child = make_branch();
  child->parent = parent.id;
  child->tip = std::move(tip);
  child->stream =
      child_stream(parent.stream, parent.forks_made++, static_cast<std::uint64_t>(length));
  child->prompt_length = parent.prompt_length;
  naive_pages += pages_of(child->tip);
  ++stats.forks;
  return Branch(child);
}

std::int64_t SessionCore::pages_of(const Tip& tip) const {
  const std::int64_t page_tokens = engine->tree->page_tokens();
  return (engine->tree->length(tip) + page_tokens - 1) / page_tokens;
}

void SessionCore::drop(BranchState* state) {
  naive_pages -= pages_of(state->tip);
  engine->tree->drop(state->tip);
  state->next_free = free_list;
  free_list = state;
  ++stats.prunes;
  --stats.branches_live;
}

void SessionCore::append(BranchState& branch, std::span<const Token> tokens) {
  naive_pages -= pages_of(branch.tip);
  engine->tree->append(branch.tip, tokens);
  naive_pages += pages_of(branch.tip);
}

Branch SessionCore::prefill(std::span<const Token> tokens, const PrefillOptions& prefill_options) {
  EngineCore& e = *engine;
  if (tokens.empty()) throw Error("prefill: the prompt has no tokens; expected at least one");
  e.check_tokens(tokens);
  const auto count = static_cast<std::int64_t>(tokens.size());
  if (e.config.max_positions_hard && count > e.config.max_positions) {
    throw Error("prefill: the prompt has " + std::to_string(count) + " tokens; this model's " +
                name_of(e.config.rope.type) + " RoPE is exact for at most " +
                std::to_string(e.config.max_positions));
  }
  if (count > e.info.kv_tokens) {
    throw Error("prefill: the prompt has " + std::to_string(count) + " tokens; the KV pool holds " +
                std::to_string(e.info.kv_tokens) + " (make it larger with kv_tokens, --kv-tokens)");
  }

  BranchState* state = nullptr;
  {
    const std::scoped_lock lock(e.tree_mutex);
    state = make_branch();
    state->parent = BranchId::kNone;
    state->stream = prefill_options.stream.value_or(philox_u64(options.seed, prompts, 0));
    ++prompts;
    state->prompt_length = count;
    std::optional<Tip> known;
    if (e.prefix_index != nullptr) known = e.prefix_index->longest_match(tokens);
    state->tip = known ? std::move(*known) : e.tree->root();
    const std::int64_t reused = e.tree->length(state->tip);
    naive_pages += pages_of(state->tip);
    stats.tokens_reused += reused;
    append(*state, tokens.subspan(static_cast<std::size_t>(reused)));
    if (self == nullptr) self = shared_from_this();
  }
  Branch branch(state);
  ComputeCall call(*this, prefill_options.cancel);
  std::vector<StepRequest> requests(1);
  requests[0].tip = &state->tip;
  const Finish ended = call.run(requests);
  const std::scoped_lock lock(e.tree_mutex);
  state->finish = requests[0].no_room ? Finish::kBudget : ended;
  stats.tokens_independent += count;
  state->independent_tokens = count;
  if (state->finish == Finish::kRunning && e.prefix_index != nullptr) {
    e.prefix_index->insert(tokens, state->tip);
  }
  return branch;
}

void SessionCore::record_fork_time(float nanoseconds) {
  constexpr std::size_t kSamples = 1024;
  if (fork_samples.size() < kSamples) {
    fork_samples.push_back(nanoseconds);
  } else {
    fork_samples[next_fork_sample++ % kSamples] = nanoseconds;
  }
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

ComputeCall::ComputeCall(SessionCore& session, std::stop_token cancel)
    : session_(session),
      engine_(*session.engine),
      compute_(session.engine->compute),
      cancel_(std::move(cancel)),
      begin_(std::chrono::steady_clock::now()) {}

ComputeCall::~ComputeCall() {
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin_;
  const std::scoped_lock lock(engine_.tree_mutex);
  session_.spent_ms += took.count();
}

Finish ComputeCall::may_step() const {
  if (cancel_.stop_requested()) return Finish::kCancelled;
  const std::scoped_lock lock(engine_.tree_mutex);
  const Budget& budget = session_.options.budget;
  if (budget.tokens > 0 && session_.stats.tokens_computed >= budget.tokens) return Finish::kBudget;
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - begin_;
  if (budget.milliseconds > 0 && session_.spent_ms + took.count() >= budget.milliseconds) {
    return Finish::kBudget;
  }
  return Finish::kRunning;
}

void ComputeCall::step(std::span<StepRequest> requests, const LogitsSink& sink) {
  std::int64_t max_rows = engine_.model->max_rows();
  if (const std::int64_t budget = session_.options.budget.tokens; budget > 0) {
    const std::scoped_lock lock(engine_.tree_mutex);
    max_rows = std::min(max_rows, budget - session_.stats.tokens_computed);
  }
  const StepReport report = engine_.step(requests, sink, max_rows);
  if (report.rows == 0) return;
  const std::scoped_lock lock(engine_.tree_mutex);
  Stats& stats = session_.stats;
  ++stats.steps;
  stats.tokens_computed += report.rows;
  stats.tokens_redundant += report.redundant_rows;
  stats.largest_batch_rows = std::max(stats.largest_batch_rows, report.rows);
  stats.copies_on_write += report.copies_on_write;
  session_.record_kv_bytes();
}

bool ComputeCall::served(const StepRequest& request) const {
  const std::scoped_lock lock(engine_.tree_mutex);
  const KvTree& tree = *engine_.tree;
  return tree.computed(*request.tip) == tree.length(*request.tip) &&
         (!request.keep_logits || tree.segment(*request.tip)->logits != nullptr);
}

Finish ComputeCall::run(std::vector<StepRequest>& requests, const LogitsSink& sink) {
  std::vector<StepRequest*> origin;
  std::vector<StepRequest> open;
  for (;;) {
    origin.clear();
    open.clear();
    for (StepRequest& request : requests) {
      if (request.no_room || served(request)) continue;
      origin.push_back(&request);
      open.push_back(request);
    }
    if (open.empty()) return Finish::kRunning;
    if (const Finish finish = may_step(); finish != Finish::kRunning) return finish;
    step(open, sink);
    for (std::size_t i = 0; i < open.size(); ++i) origin[i]->no_room = open[i].no_room;
  }
}

}  // namespace dendrite
