#include "engine/drafts/draft_model.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string>

#include "dendrite/error.h"
#include "engine/calls/decode_call.h"
#include "engine/calls/prompt_branch.h"
#include "engine/loop/run_call.h"

namespace dendrite {
namespace {

/// No longer than drafts that come true usually are.
constexpr std::int64_t kLength = 16;
/// Tokens beside each of a chain, where they cost nothing more: the device keeps its rows to itself
/// where it samples.
constexpr int kBeside = 3;
constexpr std::size_t kFollowers = 1024;
std::string token_name(const std::optional<std::string>& token) {
  return token ? "\"" + *token + "\"" : "none";
}

void check_same_tokens(const EngineCore& engine, const EngineCore& model) {
  const std::string what = "draft_model " + model.info.model_path + ": ";
  if (model.vocab() != engine.vocab()) {
    throw Error(what + "its vocabulary has " + std::to_string(model.vocab()) +
                " tokens; expected " + std::to_string(engine.vocab()) + ", as " +
                engine.info.model_path + " has");
  }
  if (!engine.tokenizer || !model.tokenizer) return;
  const std::int32_t size = std::max(engine.tokenizer->vocab_size(), model.tokenizer->vocab_size());
  for (std::int32_t id = 0; id < size; ++id) {
    const std::optional<std::string> got = model.tokenizer->id_to_token(id);
    const std::optional<std::string> expected = engine.tokenizer->id_to_token(id);
    if (got == expected) continue;
    throw Error(what + "its token " + std::to_string(id) + " is " + token_name(got) +
                "; expected " + token_name(expected) + ", as " + engine.info.model_path + " has");
  }
}

double size_ratio(const EngineCore& engine, const EngineCore& model) {
  return static_cast<double>(model.info.weight_bytes) /
         static_cast<double>(std::max<std::int64_t>(1, engine.info.weight_bytes));
}

}  // namespace

DraftModel::DraftModel(EngineCore& engine, std::shared_ptr<EngineCore> model)
    : PacedProvider(engine, chains_, {.ratio = size_ratio(engine, *model), .depth = kLength}),
      model_(std::move(model)) {
  check_same_tokens(engine, *model_);
  // From here on it is tokens alone.
  model_->grammars.reset();
  model_->detokenizer.reset();
}

DraftModel::~DraftModel() = default;

void DraftModel::tidy(bool failed) {
  if (failed) followers_.clear();
  forget(kFollowers);
}

/// None where one is about to be computed: such a turn is not to be told from others.
std::vector<LaneDraft*> DraftModel::choose(std::span<LaneDraft* const> wanted) {
  const ModelInfo::Positions& positions = model_->model_info.positions;
  std::int64_t most = model_->info.kv_tokens;
  if (positions.hard) most = std::min(most, positions.max);
  std::vector<LaneDraft*> drafts;
  const TreeLock lock(engine_.tree_mutex);
  for (LaneDraft* draft : wanted) {
    const Tip& tip = draft->lane->branch->tip;
    const std::int64_t length = engine_.tree->length(tip);
    if (length - engine_.tree->computed(tip) > kLong) return {};
    draft->is_impossible = length + kLength > most;
    if (draft->limits.depth > 0 && !draft->is_impossible) drafts.push_back(draft);
  }
  return drafts;
}

DraftModel::Follower& DraftModel::follower_of(const LaneDraft& draft) {
  const BranchState& branch = *draft.lane->branch;
  return followers_[branch.session->number].of[branch.id];
}

/// Followers have the tokens of their branches. Rows that are still to be computed for that.
std::int64_t DraftModel::follow_all(std::span<LaneDraft* const> drafts) {
  newest_ = {};
  for (const LaneDraft* draft : drafts) follow(*draft->lane->branch);
  std::set<const Segment*> seen;
  std::vector<Segment*> missing;
  std::int64_t unread = 0;
  const TreeLock lock(model_->tree_mutex);
  for (const LaneDraft* draft : drafts) {
    missing.clear();
    model_->tree->missing_chain(state_of(follower_of(*draft).branch)->tip, missing);
    for (const Segment* segment : missing) {
      if (seen.insert(segment).second) unread += segment->end() - segment->computed;
    }
  }
  return unread;
}

void DraftModel::follow(const BranchState& branch) {
  Followers& all = followers_[branch.session->number];
  if (all.session == nullptr) {
    SessionOptions options;
    options.seed = branch.session->options.seed;
    all.session = std::make_shared<SessionCore>(model_, options);
  }
  Follower& follower = all.of[branch.id];
  follower.turn = turns_;
  std::vector<Token> tokens;  // that it is not known to have
  Salt salt = 0;
  {
    const TreeLock lock(engine_.tree_mutex);
    const std::int64_t length = engine_.tree->length(branch.tip);
    tokens.resize(static_cast<std::size_t>(length - follower.agreed));
    engine_.tree->copy_tokens(branch.tip, follower.agreed, length, tokens.data());
    salt = engine_.tree->salt(branch.tip);
  }
  if (!follower.branch.valid()) {
    begin(follower, *all.session, tokens, branch.stream, salt);
    return;
  }
  const TreeLock lock(model_->tree_mutex);
  BranchState& state = *state_of(follower.branch);
  std::vector<Token> drafted(
      static_cast<std::size_t>(model_->tree->length(state.tip) - follower.agreed));
  model_->tree->copy_tokens(state.tip, follower.agreed, model_->tree->length(state.tip),
                            drafted.data());
  const auto [same, in_drafted] = std::ranges::mismatch(tokens, drafted);
  if (in_drafted != drafted.end()) {
    const std::int64_t length = follower.agreed + (same - tokens.begin());
    all.session->move_to(state, state.tip, length);
  }
  all.session->append(state, std::span(same, tokens.end()));
  follower.agreed += std::ssize(tokens);
}

/// Those that begin together usually have a prompt in common, which is to be computed once.
void DraftModel::begin(Follower& follower, SessionCore& session, std::span<const Token> tokens,
                       std::uint64_t stream, Salt salt) {
  follower.agreed = std::ssize(tokens);
  const auto same = std::ranges::mismatch(tokens, newest_.tokens).in1;
  const bool is_alike = 2 * (same - tokens.begin()) > std::ssize(tokens);
  if (is_alike && newest_.salt == salt && newest_.follower->session == &session) {
    const TreeLock lock(model_->tree_mutex);
    follower.branch = session.fork_at(*newest_.follower, same - tokens.begin(), {.stream = stream});
    session.append(*state_of(follower.branch), std::span(same, tokens.end()));
  } else {
    follower.branch = begin_prompt(session, tokens, stream, salt);
  }
  newest_ = {state_of(follower.branch), {tokens.begin(), tokens.end()}, salt};
}

void DraftModel::fill(std::span<LaneDraft* const> drafts, std::int64_t length) {
  struct Batch {
    const DecodeParams* params;
    Followers* followers;
    std::vector<LaneDraft*> drafts{};
    std::vector<Branch*> branches{};
    std::shared_ptr<DecodeCall> call{};
  };
  std::vector<Batch> batches;  // those that draw alike
  for (LaneDraft* draft : drafts) {
    auto batch = std::ranges::find(batches, draft->params, &Batch::params);
    if (batch == batches.end()) {
      Followers& of = followers_[draft->lane->branch->session->number];
      batch = batches.insert(batches.end(), Batch{draft->params, &of});
    }
    batch->drafts.push_back(draft);
    batch->branches.push_back(&follower_of(*draft).branch);
  }
  const bool samples = model_->backend->sampler() != nullptr;
  for (Batch& batch : batches) {
    const SamplerSettings& as = batch.drafts.front()->lane->sampler->settings();
    DecodeParams params{.max_tokens = length,
                        .temperature = as.temperature,
                        .top_k = as.top_k,
                        .top_p = as.top_p,
                        .min_p = as.min_p,
                        .repetition_penalty = as.repetition_penalty,
                        .logit_bias = as.logit_bias,
                        .ignore_eos = true};
    params.top_logprobs = samples ? 0 : kBeside;
    batch.call = submit_call<DecodeCall>(*batch.followers->session, batch.branches, params,
                                         Branches(), DecodeCall::Tokens::kTold);
  }
  for (const Batch& batch : batches) model_->loop->wait(*batch.call);
  bool is_full = false;
  for (Batch& batch : batches) {
    model_->loop->rethrow(*batch.call);
    const std::vector<Generation> outs = batch.call->results();
    for (std::size_t i = 0; i < outs.size(); ++i) {
      LaneDraft& draft = *batch.drafts[i];
      DraftLimits limits = draft.limits;
      if (is_free(&draft)) limits.least = 0;
      const bool greedy = draft.lane->sampler->settings().temperature == 0;
      draft.draft = chains_.propose(outs[i].logprobs, greedy, limits);
      draft.draft.level = outs[i].ids.size();
      is_full = is_full || outs[i].finish == Finish::kBudget;
    }
  }
  if (is_full) forget(drafts.size());
}

/// Leaves those that were used last.
void DraftModel::forget(std::size_t most) {
  std::size_t count = 0;
  for (const auto& [number, all] : followers_) count += all.of.size();
  if (count <= most) return;
  std::vector<std::int64_t> turns;
  for (const auto& [number, all] : followers_) {
    for (const auto& [id, follower] : all.of) turns.push_back(follower.turn);
  }
  const auto oldest = turns.begin() + static_cast<std::ptrdiff_t>(turns.size() - most);
  std::ranges::nth_element(turns, oldest);
  for (auto& [number, all] : followers_) {
    std::erase_if(all.of, [&](const auto& entry) {
      return entry.second.turn < *oldest && entry.second.turn < turns_;
    });
  }
  std::erase_if(followers_, [](const auto& entry) { return entry.second.of.empty(); });
}

}  // namespace dendrite
