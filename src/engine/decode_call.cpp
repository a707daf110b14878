#include "engine/decode_call.h"

#include <algorithm>
#include <limits>
#include <unordered_set>

#include "dendrite/error.h"
#include "engine/tell.h"

namespace dendrite {

DecodeCall::DecodeCall(SessionCore& session, std::span<Branch> branches, const DecodeParams& params,
                       std::span<Branch> ahead)
    : Call(session, params.cancel),
      branches_(branches),
      params_(params),
      sampler_(session, params_),
      streams_(false) {
  begin(ahead);
}

DecodeCall::DecodeCall(SessionCore& session, std::vector<Branch> branches,
                       const DecodeParams& params)
    : Call(session, params.cancel),
      owned_(std::move(branches)),
      branches_(owned_),
      params_(params),
      sampler_(session, params_),
      streams_(true) {
  begin({});
}

void DecodeCall::begin(std::span<Branch> ahead) {
  check_params();
  {
    const TreeLock lock(engine_.tree_mutex);
    check_branches(branches_, ahead);
    for (const std::span<Branch> some : {branches_, ahead}) {
      for (const Branch& branch : some) hold(*branch.state());
    }
  }
  for (const std::span<Branch> some : {branches_, ahead}) {
    for (const Branch& branch : some) session_->find_text(*branch.state());
  }
  const TextWatch watch(&params_.stop);
  {
    const TreeLock lock(engine_.tree_mutex);
    lanes_.reserve(branches_.size());
    for (std::size_t i = 0; i < branches_.size(); ++i) {
      Lane& lane = lanes_.emplace_back(prepare(branches_[i]), sampler_, i, watch);
      lane.length = engine_.tree->length(lane.branch->tip);
      lane.branch->last_used = engine_.clock + 1;
    }
    ahead_.reserve(ahead.size());
    for (std::size_t i = 0; i < ahead.size(); ++i) {
      BranchState& branch = *prepare(ahead[i]);
      Ahead& drawn = session_->ahead_of(branch, sampler_.settings(), params_.top_logprobs);
      Lane& lane = ahead_.emplace_back(drawn.state, sampler_, i, watch);
      lane.ahead = &drawn;
      lane.length = engine_.tree->length(branch.tip);
      lane.turn.priority = branch.priority;
      lane.branch->text = branch.text;
    }
    place_lanes();
    ++engine_.clock;
  }
  for (Lane& lane : lanes_) {
    if (params_.max_tokens == 0) {
      finish(lane, Finish::kLength);
    } else {
      running_.push_back(&lane);
    }
  }
  for (Lane& lane : ahead_) {
    if (params_.max_tokens > 0 && resume(lane)) drawing_.push_back(&lane);
  }
}

void DecodeCall::check_params() const {
  if (params_.max_tokens < 0) {
    throw Error("decode: max_tokens is " + std::to_string(params_.max_tokens) + "; expected >= 0");
  }
  if (!(params_.slack >= 1)) {
    throw Error("decode: slack is " + std::to_string(params_.slack) + "; expected >= 1");
  }
  if (!params_.stop.empty() && !engine_.detokenizer) engine_.require_tokenizer();
  for (const std::string& stop : params_.stop) {
    if (stop.empty()) throw Error("decode: a stop string is empty; expected some text");
  }
  engine_.check_tokens(params_.stop_tokens);
}

void DecodeCall::check_branches(std::span<const Branch> branches,
                                std::span<const Branch> ahead) const {
  std::unordered_set<const BranchState*> seen;  // only where one may be named twice
  const auto check = [&](const Branch& branch, const char* what,
                         std::size_t i) DENDRITE_REQUIRES(kTreeLock) {
    const auto refuse = [&](const char* why) {
      throw Error(std::string("decode: ").append(what) + std::to_string(i) + why);
    };
    if (!branch.valid()) refuse(" is empty; expected a live branch");
    if (branch.state()->session != session_.get()) refuse(" belongs to another session");
    check_free(*branch.state(), "decode");
    if (ahead.empty()) return;
    if (!seen.insert(branch.state()).second) refuse(" is named twice; expected it once");
  };
  for (std::size_t i = 0; i < branches.size(); ++i) check(branches[i], "branch ", i);
  for (std::size_t i = 0; i < ahead.size(); ++i) check(ahead[i], "ahead branch ", i);
}

/// What was drawn for the branch by other settings is of no use.
BranchState* DecodeCall::prepare(const Branch& branch) {
  BranchState* state = branch.state();
  const Ahead* ahead = state->ahead.get();
  if (ahead != nullptr && !ahead->fits(sampler_.settings(), params_.top_logprobs)) {
    session_->drop_ahead(*state);
  }
  return state;
}

/// Neighbours share pages, where rows will be short for some of the lanes. Else as in the span.
void DecodeCall::place_lanes() {
  std::int64_t rows = 0;
  for (Lane& lane : lanes_) {
    rows += std::max<std::int64_t>(1, lane.length - engine_.tree->computed(lane.branch->tip));
    lane.turn.place = static_cast<std::int64_t>(lane.index);
  }
  if (rows <= engine_.step_rows && std::ssize(lanes_) <= engine_.model->max_logit_rows()) return;
  std::vector<std::pair<std::span<const std::int32_t>, Lane*>> paths;
  for (Lane& lane : lanes_) paths.emplace_back(engine_.tree->table(lane.branch->tip), &lane);
  std::ranges::stable_sort(paths, std::ranges::lexicographical_compare,
                           &decltype(paths)::value_type::first);
  for (std::size_t i = 0; i < paths.size(); ++i) {
    paths[i].second->turn.place = static_cast<std::int64_t>(i);
  }
}

/// Goes through what was drawn ahead before. False: the branch would have stopped in it.
bool DecodeCall::resume(Lane& lane) {
  for (const Ahead::Drawn& drawn : lane.ahead->tokens) {
    lane.token = drawn.chosen.id;
    lane.chosen = drawn.chosen;
    ++lane.length;
    add_token(lane);
    conclude(lane);
    if (lane.out.finish != Finish::kRunning) return false;
  }
  return true;
}

void DecodeCall::ask(std::vector<Wish>& wishes) {
  asking_.clear();
  if (const Finish ended = may_go_on(); ended != Finish::kRunning) {
    for (Lane* lane : running_) finish(*lane, ended);
    drawing_.clear();
    retire_finished();
    return;
  }
  look_at_branches();
  for (Lane* lane : running_) {
    if (!lane->taken && lane->out.finish == Finish::kRunning) ask_for(*lane, wishes);
  }
  // (Where no branch of the call asks, it needs no pass, and must not wait for one.)
  if (asking_.empty() && !running_.empty()) return;
  for (Lane* lane : drawing_) ask_for(*lane, wishes);
}

/// What may have changed about them since the last turn; and tokens that need no step.
void DecodeCall::look_at_branches() {
  const TreeLock lock(engine_.tree_mutex);
  for (Lane* lane : running_) {
    lane->turn.priority = lane->branch->priority;
    if (lane->branch->orphaned) finish(*lane, Finish::kCancelled);
  }
  // They are told to have ended in this order.
  std::ranges::stable_sort(running_, {}, [](const Lane* lane) { return -lane->turn.priority; });
  take_ahead();
}

/// Lanes with tokens drawn ahead have their next token without a step.
void DecodeCall::take_ahead() {
  const std::int64_t budget = session_->options.budget.tokens;
  for (Lane* lane : running_) {
    if (lane->branch->ahead == nullptr || lane->out.finish != Finish::kRunning) continue;
    const Ahead::Drawn& drawn = lane->branch->ahead->tokens.front();
    if (budget > 0 && session_->spent_tokens() + drawn.rows > budget) {
      finish(*lane, Finish::kBudget);
      continue;
    }
    lane->chosen = drawn.chosen;
    if (params_.top_logprobs <= 0) lane->chosen.top.clear();
    lane->token = lane->chosen.id;
    lane->taken = true;
    session_->take_ahead(*lane->branch);
  }
}

/// Whether a token may end a lane, or all of them.
bool DecodeCall::may_stop() const {
  return (!params_.ignore_eos && !engine_.config.eos.empty()) || !params_.stop.empty() ||
         !params_.stop_tokens.empty() || params_.enough;
}

/// After this step's token, unless that ends it.
bool DecodeCall::goes_on(const Lane& lane) const {
  const std::int64_t tokens = std::ssize(lane.out.ids) + 1;
  return tokens < params_.max_tokens && !at_position_limit(lane.length + 1);
}

void DecodeCall::ask_for(Lane& lane, std::vector<Wish>& wishes) {
  asking_.push_back(&lane);
  const bool ahead = lane.ahead != nullptr;
  lane.turn.tokens = std::ssize(lane.out.ids);
  Wish& wish = wishes.emplace_back();
  wish.branch = lane.branch;
  wish.turn = lane.turn;
  wish.may_stop = may_stop();
  wish.request.tip = &lane.branch->tip;
  wish.request.optional = ahead;
  if (ahead) wish.request.priority = std::numeric_limits<int>::min();  // gives way first
  wish.request.fresh = lane.fresh;
  wish.request.draw = sampler_.prepare(lane);
  wish.request.goes_on = goes_on(lane);
  if (wish.request.draw != nullptr && wish.request.goes_on && !changing_) {
    wish.request.next = sampler_.prepare_next(lane);
  }
}

std::vector<Generation> DecodeCall::results() {
  std::vector<Generation> out;
  for (Lane& lane : lanes_) out.push_back(std::move(lane.out));
  return out;
}

std::vector<StreamToken> DecodeCall::take_tokens() {
  const std::scoped_lock lock(stream_mutex_);
  return std::exchange(stream_, {});
}

}  // namespace dendrite
