#include <algorithm>
#include <iterator>
#include <limits>
#include <unordered_set>

#include "dendrite/error.h"
#include "engine/lane_sampler.h"
#include "engine/session_core.h"
#include "engine/tell.h"

namespace dendrite {
namespace {

/// So many lanes hardly ever end with one and the same token, so a step that is begun before their
/// tokens are read is of use; where fewer may end it might be one too many for each call.
constexpr std::size_t kManyLanes = 4;

/// A decode call: steps until every branch has finished. Others, ahead of their own call, get a
/// part of the steps that are made.
class DecodeRun {
 public:
  DecodeRun(SessionCore& session, std::span<Branch> branches, const DecodeParams& params,
            std::span<Branch> ahead)
      : session_(session),
        engine_(*session.engine),
        branches_(branches),
        params_(params),
        sampler_(session, params) {
    check_params();
    check_branches(branches, ahead);
    for (const std::span<Branch> some : {branches, ahead}) {
      for (const Branch& branch : some) session.find_text(*branch.state());
    }
    const TreeLock lock(engine_.tree_mutex);
    const TextWatch watch(&params.stop);
    for (std::size_t i = 0; i < branches.size(); ++i) {
      Lane& lane = lanes_.emplace_back(prepare(branches[i]), i, watch);
      lane.length = engine_.tree->length(lane.branch->tip);
      lane.branch->last_used = engine_.clock + 1;
    }
    for (std::size_t i = 0; i < ahead.size(); ++i) {
      BranchState& branch = *prepare(ahead[i]);
      Ahead& ahead = session.ahead_of(branch, sampler_.settings(), params.top_logprobs);
      Lane& lane = ahead_.emplace_back(ahead.state, i, watch);
      lane.ahead = &ahead;
      lane.length = engine_.tree->length(branch.tip);
      lane.turn.priority = branch.priority;
      lane.branch->text = branch.text;
    }
    place_lanes();
    ++engine_.clock;
  }

  std::vector<Generation> run() {
    ComputeCall call(session_, params_.cancel);
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
    judge(call);
    while (!running_.empty() || (lanes_.empty() && !drawing_.empty())) {
      if (const Finish ended = call.may_step(); ended != Finish::kRunning) {
        for (Lane* lane : running_) finish(*lane, ended);
        drawing_.clear();
        retire_finished(call);
      } else {
        step(call);
      }
    }
    std::vector<Generation> out;
    for (Lane& lane : lanes_) out.push_back(std::move(lane.out));
    return out;
  }

 private:
  void check_params() const {
    if (params_.max_tokens < 0) {
      throw Error("decode: max_tokens is " + std::to_string(params_.max_tokens) +
                  "; expected >= 0");
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

  void check_branches(std::span<const Branch> branches, std::span<const Branch> ahead) const {
    std::unordered_set<const BranchState*> seen;  // only where one may be named twice
    const auto check = [&](const Branch& branch, const char* what, std::size_t i) {
      const auto refuse = [&](const char* why) {
        throw Error(std::string("decode: ").append(what) + std::to_string(i) + why);
      };
      if (!branch.valid()) refuse(" is empty; expected a live branch");
      if (branch.state()->session != &session_) refuse(" belongs to another session");
      if (ahead.empty()) return;
      if (!seen.insert(branch.state()).second) refuse(" is named twice; expected it once");
    };
    for (std::size_t i = 0; i < branches.size(); ++i) check(branches[i], "branch ", i);
    for (std::size_t i = 0; i < ahead.size(); ++i) check(ahead[i], "ahead branch ", i);
  }

  /// What was drawn for the branch by other settings is of no use.
  BranchState* prepare(const Branch& branch) DENDRITE_REQUIRES(kTreeLock) {
    BranchState* state = branch.state();
    const Ahead* ahead = state->ahead.get();
    if (ahead != nullptr && !ahead->fits(sampler_.settings(), params_.top_logprobs)) {
      session_.drop_ahead(*state);
    }
    return state;
  }

  /// Goes through what was drawn ahead before. False: the branch would have stopped in it.
  bool resume(Lane& lane) {
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

  /// plan -> room -> batch -> forward (all in the engine's step) -> sample -> commit.
  void step(ComputeCall& call) DENDRITE_REQUIRES(kComputeLock) {
    take_turns();
    take_ahead();
    requests_.clear();
    asking_.clear();
    for (Lane* lane : running_) {
      if (!lane->taken && lane->out.finish == Finish::kRunning) ask(*lane);
    }
    if (!may_stop() || asking_.size() >= kManyLanes) {
      for (std::size_t i = 0; i < asking_.size(); ++i) {
        StepRequest& request = requests_[i];
        if (request.draw == nullptr || !goes_on(*asking_[i])) continue;
        request.next = sampler_.prepare_next(*asking_[i]);
      }
    }
    // (Where no branch of the call asks, it needs no pass, and must not wait for one.)
    if (!asking_.empty() || running_.empty()) {
      for (Lane* lane : drawing_) ask(*lane);
    }
    const double begin_ms = call.elapsed_ms();
    const std::int64_t rows = call.step(requests_, nullptr, params_.slack);
    const std::int64_t kept = take_distributions();
    sampler_.sample(ready_);
    if (rows > 0) call.record_time(rows + kept, begin_ms);
    if (running_.empty() && rows == 0 && ready_.empty()) drawing_.clear();  // no pages for them
    commit_ready();
    retire_finished(call);
  }

  /// Lanes with tokens drawn ahead have their next token without a step.
  void take_ahead() {
    const std::int64_t budget = session_.options.budget.tokens;
    const TreeLock lock(engine_.tree_mutex);
    for (Lane* lane : running_) {
      if (lane->branch->ahead == nullptr) continue;
      const Ahead::Drawn& drawn = lane->branch->ahead->tokens.front();
      if (budget > 0 && session_.spent_tokens() + drawn.rows > budget) {
        finish(*lane, Finish::kBudget);
        continue;
      }
      lane->chosen = drawn.chosen;
      if (params_.top_logprobs <= 0) lane->chosen.top.clear();
      lane->token = lane->chosen.id;
      lane->taken = true;
      session_.take_ahead(*lane->branch);
    }
  }

  /// Whether a token may end a lane, or all of them.
  bool may_stop() const {
    return (!params_.ignore_eos && !engine_.config.eos.empty()) || !params_.stop.empty() ||
           !params_.stop_tokens.empty() || params_.enough;
  }

  /// After this step's token, unless that ends it.
  bool goes_on(const Lane& lane) const {
    const std::int64_t tokens = std::ssize(lane.out.ids) + 1;
    return tokens < params_.max_tokens && !at_position_limit(lane.length + 1);
  }

  void ask(Lane& lane) {
    asking_.push_back(&lane);
    const bool ahead = lane.ahead != nullptr;
    requests_.push_back({.tip = &lane.branch->tip,
                         .priority = ahead ? lane.branch->priority : lane.turn.priority,
                         .optional = ahead,
                         .branch = lane.branch,
                         .draw = sampler_.prepare(lane)});
  }

  /// Who goes first where not all fit into one batch or into the pages.
  void take_turns() {
    {
      const TreeLock lock(engine_.tree_mutex);
      for (Lane* lane : running_) lane->turn.priority = lane->branch->priority;
    }
    for (auto* lanes : {&running_, &drawing_}) {
      for (Lane* lane : *lanes) lane->turn.tokens = std::ssize(lane->out.ids);
      order_turns(*lanes, engine_.step_rows);
    }
  }

  /// Neighbours share pages, where rows will be short for some of the lanes. Else as in the span.
  void place_lanes() DENDRITE_REQUIRES(kTreeLock) {
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

  /// How many of those that are drawn ahead need no row for it.
  std::int64_t take_distributions() {
    std::int64_t kept = 0;
    ready_.clear();
    const TreeLock lock(engine_.tree_mutex);
    for (std::size_t i = 0; i < asking_.size(); ++i) {
      Lane& lane = *asking_[i];
      const StepRequest::Account& account = requests_[i].account;
      lane.rows += account.rows;
      if (account.rows > 0 && lane.ahead == nullptr) {
        session_.count_independent(*lane.branch, engine_.tree->computed(lane.branch->tip));
      }
      lane.turn.waited = account.ran || account.waited ? 0 : lane.turn.waited + 1;
      if (lane.ahead != nullptr && !account.ran) continue;  // not in this step
      lane.logits = engine_.tree->segment(lane.branch->tip)->logits;
      if (lane.draw.token >= 0) {
        ready_.push_back(&lane);
      } else if (lane.logits != nullptr) {
        ready_.push_back(&lane);
        lane.length = engine_.tree->length(lane.branch->tip);
        if (sampler_.wants_history()) {
          lane.history = engine_.tree->tokens(lane.branch->tip);
        }
        if (lane.ahead != nullptr && account.rows == 0) ++kept;
      } else if (requests_[i].state == StepRequest::State::kNoRoom) {
        finish(lane, Finish::kBudget);
      }
    }
    return kept;
  }

  void commit_ready() {
    std::ranges::copy_if(running_, std::back_inserter(ready_), &Lane::taken);
    std::ranges::sort(ready_, {}, &Lane::index);
    {
      const TreeLock lock(engine_.tree_mutex);
      for (Lane* lane : ready_) {
        lane->logits.reset();
        ++lane->length;
        if (lane->ahead != nullptr) {
          commit_ahead(*lane);
        } else {
          commit(*lane);
        }
        lane->rows = 0;
        lane->taken = false;
      }
    }
    // All have their texts before anybody hears of a token: on_token may fork each of them.
    for (Lane* lane : ready_) add_token(*lane);
    for (Lane* lane : ready_) conclude(*lane);
  }

  void commit(Lane& lane) DENDRITE_REQUIRES(kTreeLock) {
    BranchState& branch = *lane.branch;
    if (!lane.taken) session_.append(branch, std::span(&lane.token, 1));
    session_.count_independent(branch, lane.length - 1);
    branch.logprob += lane.chosen.logprob;
    ++branch.tokens_generated;
    ++session_.stats.tokens_generated;
  }

  void commit_ahead(Lane& lane) DENDRITE_REQUIRES(kTreeLock) {
    engine_.tree->append(lane.branch->tip, std::span(&lane.token, 1));
    lane.ahead->tokens.push_back({lane.chosen, lane.rows});
    ++session_.stats.tokens_ahead;
    engine_.debug_check();
  }

  void add_token(Lane& lane) {
    lane.out.ids.push_back(lane.token);
    if (params_.top_logprobs >= 0) lane.out.logprobs.push_back(std::move(lane.chosen));
    if (engine_.detokenizer) {
      lane.stopped = engine_.detokenizer->incremental_ok()
                         ? lane.watch.add(engine_.detokenizer->push(*lane.branch->text, lane.token))
                         : lane.watch.replace(engine_.tokenizer->decode(lane.out.ids, true));
    }
  }

  /// Whether the token ends the lane; and tells of it.
  void conclude(Lane& lane) {
    const auto& eos = engine_.config.eos;
    if (!params_.ignore_eos && std::find(eos.begin(), eos.end(), lane.token) != eos.end()) {
      finish(lane, Finish::kEos);
    } else if (lane.stopped || std::find(params_.stop_tokens.begin(), params_.stop_tokens.end(),
                                         lane.token) != params_.stop_tokens.end()) {
      finish(lane, Finish::kStop);
    } else if (static_cast<std::int64_t>(lane.out.ids.size()) == params_.max_tokens ||
               at_position_limit(lane.length)) {
      finish(lane, Finish::kLength);
    }
    if (params_.on_token && lane.ahead == nullptr) {
      const bool last = lane.out.finish != Finish::kRunning;
      std::string shown = lane.watch.take_visible(last);
      // With the last token goes what only the end of the text decides: an unfinished character.
      if (last && engine_.detokenizer) shown += lane.out.text.substr(lane.watch.text().size());
      params_.on_token({lane.branch->id, lane.index, lane.token, shown});
    }
  }

  /// Those that have finished run no more, and the rule for the others looks at them.
  void retire_finished(const ComputeCall& call) {
    for (const Lane* lane : running_) {
      if (lane->out.finish != Finish::kRunning) tell(*lane, call);
    }
    for (auto* lanes : {&running_, &drawing_}) {
      std::erase_if(*lanes, [](const Lane* lane) { return lane->out.finish != Finish::kRunning; });
    }
    judge(call);
  }

  void tell(const Lane& lane, const ComputeCall& call) {
    const TreeLock lock(engine_.tree_mutex);
    tell_finish(*lane.branch, std::ssize(lane.out.ids), call.elapsed_ms());
  }

  /// Shows the caller's rule who has finished, as though all branches went token by token together:
  /// one is shown when no other can finish with fewer tokens any more. (Where not all fit into a
  /// step or into the pages, some run ahead of others.) For the same reason one that pages or
  /// budget cut short where it was level with the last one shown, or further, is a loser as well.
  void judge(const ComputeCall& call) {
    if (unjudged_.empty()) return;
    std::size_t fewest = std::numeric_limits<std::size_t>::max();
    for (const Lane* lane : running_) fewest = std::min(fewest, lane->out.ids.size());
    std::ranges::sort(unjudged_, {}, [](const Lane* lane) {
      return std::pair(lane->out.ids.size(), lane->index);
    });
    for (std::size_t i = 0; i < unjudged_.size(); ++i) {
      const Lane& lane = *unjudged_[i];
      if (lane.out.ids.size() > fewest) {
        unjudged_.erase(unjudged_.begin(), unjudged_.begin() + static_cast<std::ptrdiff_t>(i));
        return;
      }
      if (!params_.enough(lane.index, lane.out)) continue;
      std::vector<Lane*> losers(unjudged_.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                                unjudged_.end());
      losers.insert(losers.end(), running_.begin(), running_.end());
      for (Lane& other : lanes_) {
        const bool level = other.out.ids.size() >= lane.out.ids.size();
        if (level && was_cut(other)) losers.push_back(&other);
      }
      abandon(losers, call);
      running_.clear();
      break;
    }
    unjudged_.clear();
  }

  void abandon(std::span<Lane* const> lanes, const ComputeCall& call) {
    for (Lane* lane : lanes) {
      lane->out = {};
      lane->out.finish = lane->branch->finish = Finish::kAbandoned;
      tell(*lane, call);
      const TreeLock lock(engine_.tree_mutex);
      session_.prune(branches_.subspan(lane->index, 1));
    }
  }

  /// Ended, and not by itself.
  static bool was_cut(const Lane& lane) {
    return lane.out.finish == Finish::kBudget || lane.out.finish == Finish::kCancelled;
  }

  bool at_position_limit(std::int64_t length) const {
    return engine_.config.max_positions_hard && length >= engine_.config.max_positions;
  }

  void finish(Lane& lane, Finish reason) {
    lane.out.finish = reason;
    lane.branch->finish = reason;
    if (params_.enough && !was_cut(lane) && lane.ahead == nullptr) unjudged_.push_back(&lane);
    if (!engine_.detokenizer) return;
    lane.out.text = lane.watch.text();
    if (lane.stopped || !engine_.detokenizer->incremental_ok()) return;
    DetokState rest = *lane.branch->text;  // a copy: the branch may go on
    lane.out.text += engine_.detokenizer->finish(rest);
  }

  SessionCore& session_;
  EngineCore& engine_;
  std::span<Branch> branches_;
  const DecodeParams& params_;
  LaneSampler sampler_;
  std::vector<Lane> lanes_;
  std::vector<Lane> ahead_;
  std::vector<Lane*> running_;   // of lanes_
  std::vector<Lane*> drawing_;   // of ahead_
  std::vector<Lane*> asking_;    // whose the requests are
  std::vector<Lane*> ready_;     // have their distribution in this step
  std::vector<Lane*> unjudged_;  // finished by themselves, and not yet shown to `enough`
  std::vector<StepRequest> requests_;
};

}  // namespace

std::vector<Generation> decode(SessionCore& session, std::span<Branch> branches,
                               const DecodeParams& params, std::span<Branch> ahead) {
  return DecodeRun(session, branches, params, ahead).run();
}

}  // namespace dendrite
