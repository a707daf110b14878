#include "engine/calls/decode_call.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>

#include "dendrite/error.h"
#include "engine/branches/tell.h"
#include "engine/calls/lane_grammar.h"

namespace dendrite {

namespace {

/// With the model's own stop strings, and functions that must not wait where they are called.
DecodeParams with_defaults(DecodeParams params, EngineCore& engine) {
  if (params.on_logits) {
    params.on_logits = [threads = &engine.callbacks,
                        call = std::move(params.on_logits)](const LogitsBatch& batch) {
      const CallbackThreads::Scope scope(*threads);
      call(batch);
    };
  }
  if (params.ignore_eos || !engine.detokenizer) return params;
  const std::vector<std::string>& stops = engine.model_info.generation.stop_strings;
  params.stop.insert(params.stop.end(), stops.begin(), stops.end());
  return params;
}

}  // namespace

DecodeCall::DecodeCall(SessionCore& session, std::vector<Branch*> branches,
                       const DecodeParams& params, Branches ahead, Tokens tokens)
    : Call(session, params.cancel),
      branches_(std::move(branches)),
      params_(with_defaults(params, *session.engine)),
      sampler_(session, params_),
      start_(params_.constraint ? Matcher(session.engine->compiled(*params_.constraint))
                                : Matcher()),
      streams_(tokens == Tokens::kKept) {
  begin(ahead);
}

DecodeCall::DecodeCall(SessionCore& session, std::vector<Branch> branches,
                       const DecodeParams& params)
    : DecodeCall(session, Branches(branches).pointers(), params, {}, Tokens::kKept) {
  owned_ = std::move(branches);  // where they are does not change
}

void DecodeCall::begin(Branches ahead) {
  check_params();
  const Branches branches(branches_);
  {
    const TreeLock lock(engine_.tree_mutex);
    hold(branches, "decode");
    hold(ahead, "decode", "ahead ");
  }
  if (sampler_.has_hook()) ahead = {};  // what it does is not known to be the same next time
  find_states(branches);
  find_states(ahead);
  const TextWatch watch(&params_.stop);
  {
    const TreeLock lock(engine_.tree_mutex);
    lanes_.reserve(branches_.size());
    for (std::size_t i = 0; i < branches_.size(); ++i) {
      Lane& lane = lanes_.emplace_back(prepare(*branches_[i]), sampler_, i, watch);
      lane.length = engine_.tree->length(lane.branch->tip);
      lane.branch->last_used = engine_.clock + 1;
      lane.matcher = start_.valid() ? start_ : lane.branch->rare->constraint.matcher;
      lane.skips_forced = params_.top_logprobs < 0;  // which are read from their distributions
    }
    ahead_.reserve(ahead.size());
    for (std::size_t i = 0; i < ahead.size(); ++i) {
      BranchState& branch = *prepare(ahead[i]);
      Ahead& drawn = session_->ahead_of(branch, sampler_.settings(), params_.top_logprobs);
      if (drawn.tokens.empty()) {
        drawn.constraint = params_.constraint;
        drawn.matcher = start_;
      }
      Lane& lane = ahead_.emplace_back(drawn.state, sampler_, i, watch);
      lane.ahead = &drawn;
      lane.length = engine_.tree->length(branch.tip);
      lane.turn.priority = branch.priority;
      lane.branch->text = branch.text;
      lane.matcher = start_.valid() ? drawn.matcher : drawn.state->rare->constraint.matcher;
    }
    place_lanes();
    ++engine_.clock;
  }
  for (Lane& lane : lanes_) {
    if (params_.max_tokens == 0) {
      finish(lane, Finish::kLength);
    } else {
      look_at_constraint(lane);
      if (lane.out.finish == Finish::kRunning && at_position_limit(lane.length)) {
        finish(lane, Finish::kLength);
      }
      running_.push_back(&lane);
    }
  }
  for (Lane& lane : ahead_) {
    if (params_.max_tokens == 0 || at_position_limit(lane.length)) continue;
    if (resume(lane)) drawing_.push_back(&lane);
  }
}

/// What is not known of branches that were cut from longer ones, or restored.
void DecodeCall::find_states(Branches branches) {
  for (const Branch& branch : branches) {
    BranchState& state = *state_of(branch);
    session_->find_text(state);
    if (!state.rare->constraint.holds()) continue;
    if (start_.valid()) {
      throw Error(
          "decode: DecodeParams::constraint is set, and a branch is under one of its own "
          "(Branch::constrain); expected one of the two");
    }
    const Matcher matcher = session_->find_matcher(state);
    const TreeLock lock(engine_.tree_mutex);
    state.rare.edit().constraint.matcher = matcher;
  }
}

/// Where it stands before the call's first token.
void DecodeCall::look_at_constraint(Lane& lane) {
  if (!lane.matcher.valid()) return;
  try {
    lane.complete = lane.matcher.is_complete();
  } catch (const GrammarLimit&) {
    lane.dead = true;
  }
  if (lane.complete) finish(lane, Finish::kStop);
  if (lane.dead) finish(lane, Finish::kDeadEnd);
}

void DecodeCall::check_speculation() const {
  const DecodeParams& p = params_;
  const auto at_least = [](const char* name, std::int64_t got, std::int64_t least) {
    if (got >= least) return;
    throw Error(std::string("decode: ") + name + " is " + std::to_string(got) +
                "; expected >= " + std::to_string(least));
  };
  at_least("speculate_budget", p.speculate_budget, 0);
  at_least("speculate_tokens", p.speculate_tokens, 0);
  at_least("speculate_top_k", p.speculate_top_k, 1);
  if (!(p.speculate_temperature > 0) || std::isinf(p.speculate_temperature)) {
    throw Error("decode: speculate_temperature is " + std::to_string(p.speculate_temperature) +
                "; expected > 0");
  }
  const bool is_tree =
      p.speculate == Speculate::kDFlashTree || p.speculate == Speculate::kSuffixDFlash;
  if (is_tree && p.speculate_budget > 0 && p.speculate_tokens > p.speculate_budget) {
    throw Error("decode: speculate_tokens is " + std::to_string(p.speculate_tokens) +
                "; expected no more than speculate_budget, " + std::to_string(p.speculate_budget) +
                ", or another method than " + name_of(p.speculate));
  }
  if (p.speculate == Speculate::kOff || engine_.drafts->has(p.speculate)) return;
  if (p.speculate == Speculate::kDraftModel) {
    throw Error(
        "decode: speculate is draft_model, and the engine has none; expected one that was loaded "
        "with EngineOptions::draft_model (--draft-model)");
  }
  if (p.speculate == Speculate::kMtp || p.speculate == Speculate::kSuffixMtp) {
    throw Error(std::string("decode: speculate is ") + name_of(p.speculate) +
                ", and the engine has no MTP head; expected one that was loaded with \"mtp\" as "
                "EngineOptions::drafter (--drafter mtp)");
  }
  throw Error(std::string("decode: speculate is ") + name_of(p.speculate) +
              ", and the engine has no drafter; expected one that was loaded with "
              "EngineOptions::drafter (--drafter)");
}

void DecodeCall::check_params() const {
  if (params_.max_tokens < 0) {
    throw Error("decode: max_tokens is " + std::to_string(params_.max_tokens) + "; expected >= 0");
  }
  if (!(params_.slack >= 1)) {
    throw Error("decode: slack is " + std::to_string(params_.slack) + "; expected >= 1");
  }
  check_speculation();
  const std::size_t cancel_each = params_.cancel_each.size();
  if (cancel_each != 0 && cancel_each != branches_.size()) {
    throw Error("decode: cancel_each has " + std::to_string(cancel_each) +
                " elements; expected none or " + std::to_string(branches_.size()) +
                ", one for each branch");
  }
  if (!params_.stop.empty() && !engine_.detokenizer) engine_.require_tokenizer();
  for (const std::string& stop : params_.stop) {
    if (stop.empty()) throw Error("decode: a stop string is empty; expected some text");
  }
  engine_.check_tokens(params_.stop_tokens);
}

/// What was drawn for the branch by other settings is of no use.
BranchState* DecodeCall::prepare(const Branch& branch) {
  BranchState* state = state_of(branch);
  const Ahead* ahead = state->ahead.get();
  if (ahead != nullptr &&
      (sampler_.has_hook() ||
       !ahead->fits(sampler_.settings(), params_.top_logprobs, params_.constraint))) {
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
    lane.complete =
        lane.matcher.valid() && &drawn == &lane.ahead->tokens.back() && lane.matcher.is_complete();
    conclude(lane);
    if (lane.out.finish != Finish::kRunning) return false;
  }
  return true;
}

void DecodeCall::ask(std::vector<Wish>& wishes) {
  asking_.clear();
  if (const Finish ended = may_go_on(); ended != Finish::kRunning) {
    for (Lane* lane : running_) {
      if (lane->out.finish == Finish::kRunning) finish(*lane, ended);
    }
    drawing_.clear();
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

/// Optional rows of either kind wait for time that is left; where others are drawn ahead, too, for
/// what these may take.
double DecodeCall::slack() const {
  if (drafting_ == nullptr || !drawing_.empty()) return params_.slack;
  return std::max(params_.slack, drafting_->slack());
}

bool DecodeCall::wants_drafts() const {
  return params_.speculate != Speculate::kOff && params_.speculate_budget > 0;
}

void DecodeCall::want_drafts(std::vector<DraftWish>& wishes) {
  if (!wants_drafts()) return;
  if (drafting_ == nullptr) {
    drafting_ = std::make_unique<Drafting>(*session_, params_, sampler_);
  }
  if (drafting_->rests()) return;
  for (Lane* lane : asking_) {
    if (lane->ahead != nullptr) continue;
    std::int64_t most = params_.max_tokens - std::ssize(lane->out.ids);
    most = std::min(most, position_limit() - lane->length);
    drafting_->want(*lane, most);
  }
  drafting_->collect(wishes);
}

void DecodeCall::ask_for_drafts(std::vector<Wish>& wishes) {
  if (drafting_ != nullptr) drafting_->ask(wishes);
}

void DecodeCall::prepare_draft_draws() {
  if (drafting_ != nullptr) drafting_->prepare_draws();
}

/// What may have changed about them since the last turn; and tokens that need no step.
void DecodeCall::look_at_branches() {
  for (Lane* lane : running_) {
    lane->turn.priority = lane->branch->priority;
    if (lane->out.finish != Finish::kRunning) continue;  // complete as the call began
    if (lane->branch->orphaned || is_cancelled_alone(*lane)) finish(*lane, Finish::kCancelled);
  }
  // They are told to have ended in this order.
  std::ranges::stable_sort(running_, std::ranges::greater{},
                           [](const Lane* lane) { return lane->turn.priority; });
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
    lane->was_forced = drawn.forced;
    lane->taken = lane->in_tree = true;
    session_->take_ahead(*lane->branch);
  }
}

bool DecodeCall::is_cancelled_alone(const Lane& lane) const {
  return !params_.cancel_each.empty() && params_.cancel_each[lane.index].stop_requested();
}

/// Whether a token may end a lane, or all of them.
bool DecodeCall::may_stop() const {
  return (!params_.ignore_eos && !engine_.model_info.eos.empty()) || !params_.stop.empty() ||
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
  wish.may_stop = may_stop() || lane.matcher.valid();
  wish.lane = &lane;
  wish.request.tip = &lane.branch->tip;
  wish.request.optional = ahead;
  if (ahead) wish.request.priority = std::numeric_limits<int>::min();  // gives way first
  wish.request.fresh = lane.fresh;
  if (sampler_.wants_history()) sampler_.read_history(lane);
  wish.request.draw = sampler_.prepare(lane);
  wish.request.draw_waits = lane.matcher.valid() || sampler_.draws_wait();
  wish.request.goes_on = goes_on(lane);
  if (!ahead) {
    wish.to_come =
        std::min(params_.max_tokens - std::ssize(lane.out.ids), position_limit() - lane.length);
  }
  // (Where one token was forced, more may be: without a step under way they are one pass.)
  const bool may_begin =
      wish.request.goes_on && !changing_ && !(lane.was_forced && lane.skips_forced);
  if (wish.request.draw != nullptr && may_begin) {
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
