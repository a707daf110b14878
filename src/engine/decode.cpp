#include <algorithm>
#include <limits>

#include "dendrite/error.h"
#include "engine/lane_sampler.h"
#include "engine/session_core.h"
#include "engine/tell.h"

namespace dendrite {
namespace {

/// A decode call: steps until every branch has finished.
class DecodeRun {
 public:
  DecodeRun(SessionCore& session, std::span<Branch> branches, const DecodeParams& params)
      : session_(session),
        engine_(*session.engine),
        branches_(branches),
        params_(params),
        sampler_(session, params) {
    if (params.max_tokens < 0) {
      throw Error("decode: max_tokens is " + std::to_string(params.max_tokens) + "; expected >= 0");
    }
    if (!params.stop.empty() && !engine_.detokenizer) engine_.require_tokenizer();
    for (const std::string& stop : params.stop) {
      if (stop.empty()) throw Error("decode: a stop string is empty; expected some text");
    }
    engine_.check_tokens(params.stop_tokens);
    const std::scoped_lock lock(engine_.tree_mutex);
    for (std::size_t i = 0; i < branches.size(); ++i) {
      if (!branches[i].valid()) {
        throw Error("decode: branch " + std::to_string(i) + " is empty; expected a live branch");
      }
      BranchState* state = branches[i].state();
      if (state->session != &session) {
        throw Error("decode: branch " + std::to_string(i) + " belongs to another session");
      }
      Lane& lane = lanes_.emplace_back(state, i, TextWatch(&params.stop));
      lane.length = engine_.tree->length(state->tip);
      state->last_used = engine_.clock + 1;
      session.stats.tokens_independent += lane.length - state->independent_tokens;
      state->independent_tokens = lane.length;
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
    judge(call);
    while (!running_.empty()) {
      if (const Finish ended = call.may_step(); ended != Finish::kRunning) {
        for (Lane* lane : running_) finish(*lane, ended);
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
  /// plan -> room -> batch -> forward (all in the engine's step) -> sample -> commit.
  void step(ComputeCall& call) {
    take_turns();
    requests_.clear();
    for (Lane* lane : running_) {
      requests_.push_back(
          {.tip = &lane->branch->tip, .priority = lane->turn.priority, .branch = lane->branch});
      requests_.back().draw = sampler_.prepare(*lane);
    }
    call.step(requests_);
    take_distributions();
    std::ranges::sort(ready_, {}, &Lane::index);
    sampler_.sample(ready_);
    commit_ready();
    retire_finished(call);
  }

  /// Who goes first where not all fit into one batch or into the pages.
  void take_turns() {
    {
      const std::scoped_lock lock(engine_.tree_mutex);
      for (Lane* lane : running_) lane->turn.priority = lane->branch->priority;
    }
    for (Lane* lane : running_) lane->turn.tokens = std::ssize(lane->out.ids);
    order_turns(running_, engine_.step_rows);
  }

  /// Neighbours share pages, where rows will be short for some of the lanes. Else as in the span.
  void place_lanes() {
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

  void take_distributions() {
    ready_.clear();
    const std::scoped_lock lock(engine_.tree_mutex);
    for (std::size_t i = 0; i < running_.size(); ++i) {
      Lane& lane = *running_[i];
      const StepRequest::Account& account = requests_[i].account;
      lane.turn.waited = account.ran || account.waited ? 0 : lane.turn.waited + 1;
      lane.logits = engine_.tree->segment(lane.branch->tip)->logits;
      if (lane.draw.token >= 0) {
        ready_.push_back(&lane);
      } else if (lane.logits != nullptr) {
        ready_.push_back(&lane);
        lane.length = engine_.tree->length(lane.branch->tip);
        if (sampler_.wants_history()) {
          lane.history = engine_.tree->tokens(lane.branch->tip);
        }
      } else if (requests_[i].state == StepRequest::State::kNoRoom) {
        finish(lane, Finish::kBudget);
      }
    }
  }

  void commit_ready() {
    {
      const std::scoped_lock lock(engine_.tree_mutex);
      for (Lane* lane : ready_) {
        lane->logits.reset();
        session_.append(*lane->branch, std::span(&lane->token, 1));
        ++lane->length;
        lane->branch->logprob += lane->chosen.logprob;
        ++lane->branch->independent_tokens;
        ++lane->branch->tokens_generated;
      }
      session_.stats.tokens_generated += static_cast<std::int64_t>(ready_.size());
      session_.stats.tokens_independent += static_cast<std::int64_t>(ready_.size());
    }
    for (Lane* lane : ready_) commit_text(*lane);
  }

  void commit_text(Lane& lane) {
    lane.out.ids.push_back(lane.token);
    if (params_.top_logprobs >= 0) lane.out.logprobs.push_back(std::move(lane.chosen));
    if (engine_.detokenizer) {
      const std::string piece = engine_.detokenizer->push(lane.branch->text, lane.token);
      lane.stopped = engine_.detokenizer->incremental_ok()
                         ? lane.watch.add(piece)
                         : lane.watch.replace(engine_.tokenizer->decode(lane.out.ids, true));
    }
    const auto& eos = engine_.config.eos;
    if (!params_.ignore_eos && std::find(eos.begin(), eos.end(), lane.token) != eos.end()) {
      finish(lane, Finish::kEos);
    } else if (lane.stopped || std::find(params_.stop_tokens.begin(), params_.stop_tokens.end(),
                                         lane.token) != params_.stop_tokens.end()) {
      finish(lane, Finish::kStop);
    } else if (static_cast<std::int64_t>(lane.out.ids.size()) == params_.max_tokens ||
               at_position_limit(lane)) {
      finish(lane, Finish::kLength);
    }
    if (params_.on_token) {
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
    std::erase_if(running_, [](const Lane* lane) { return lane->out.finish != Finish::kRunning; });
    judge(call);
  }

  void tell(const Lane& lane, const ComputeCall& call) {
    const std::scoped_lock lock(engine_.tree_mutex);
    tell_finish(*lane.branch, std::ssize(lane.out.ids), call.elapsed_ms());
  }

  /// Shows the caller's rule who has finished, as though all branches went token by token together:
  /// one is shown when no other can finish with fewer tokens any more. (Where not all fit into a
  /// step or into the pages, some run ahead of others.)
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
      abandon(std::span(unjudged_).subspan(i + 1), call);
      abandon(running_, call);
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
      const std::scoped_lock lock(engine_.tree_mutex);
      session_.prune(branches_.subspan(lane->index, 1));
    }
  }

  bool at_position_limit(const Lane& lane) const {
    return engine_.config.max_positions_hard && lane.length >= engine_.config.max_positions;
  }

  void finish(Lane& lane, Finish reason) {
    lane.out.finish = reason;
    lane.branch->finish = reason;
    const bool by_itself = reason != Finish::kBudget && reason != Finish::kCancelled;
    if (params_.enough && by_itself) unjudged_.push_back(&lane);
    if (!engine_.detokenizer) return;
    lane.out.text = lane.watch.text();
    if (lane.stopped || !engine_.detokenizer->incremental_ok()) return;
    DetokState rest = lane.branch->text;  // a copy: the branch may go on
    lane.out.text += engine_.detokenizer->finish(rest);
  }

  SessionCore& session_;
  EngineCore& engine_;
  std::span<Branch> branches_;
  const DecodeParams& params_;
  LaneSampler sampler_;
  std::vector<Lane> lanes_;
  std::vector<Lane*> running_;
  std::vector<Lane*> ready_;     // have their distribution in this step
  std::vector<Lane*> unjudged_;  // finished by themselves, and not yet shown to `enough`
  std::vector<StepRequest> requests_;
};

}  // namespace

std::vector<Generation> decode(SessionCore& session, std::span<Branch> branches,
                               const DecodeParams& params) {
  return DecodeRun(session, branches, params).run();
}

}  // namespace dendrite
