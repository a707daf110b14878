// A decode call after a step: its lanes' tokens, their text, who has ended; and what the caller's
// functions hear and say of it.
#include <algorithm>
#include <iterator>
#include <limits>

#include "engine/branches/tell.h"
#include "engine/calls/decode_call.h"
#include "engine/calls/lane_grammar.h"
#include "step/stepper.h"

namespace dendrite {

void DecodeCall::take(std::span<const StepOutcome> outcomes, ReadyLanes& ready) {
  ready_.clear();
  bool any_ran = false;
  bool any_waited = false;
  for (std::size_t i = 0; i < asking_.size(); ++i) {
    Lane& lane = *asking_[i];
    const StepOutcome& outcome = outcomes[i];
    // (Nor is it drawn for where its distribution is kept: a step may be under way without it.)
    if (lane.branch->outside) continue;
    lane.rows += outcome.rows;
    if (outcome.rows > 0 && lane.ahead == nullptr) {
      session_->count_independent(*lane.branch, engine_.tree->computed(lane.branch->tip));
    }
    lane.turn.waited = outcome.ran || outcome.waited ? 0 : lane.turn.waited + 1;
    lane.fresh = lane.fresh && !outcome.ran;
    changing_ = changing_ || outcome.stale;
    any_ran = any_ran || outcome.ran;
    any_waited = any_waited || outcome.waited;
    if (lane.ahead != nullptr && !outcome.ran) continue;  // not in this step
    lane.draw.token = outcome.token;
    lane.draw.logprob = outcome.logprob;
    lane.draw.lse = outcome.lse;
    lane.logits =
        outcome.row != nullptr ? outcome.row : engine_.tree->segment(lane.branch->tip)->logits;
    if (outcome.drawn >= 0) {  // perhaps nothing: there is no token to draw
      ready_.push_back(&lane);
    } else if (lane.logits != nullptr) {
      ready_.push_back(&lane);
      lane.length = engine_.tree->length(lane.branch->tip);
      if (sampler_.wants_history()) sampler_.read_history(lane);
    } else if (outcome.no_room) {
      finish(lane, Finish::kBudget);
    }
  }
  ready.open.insert(ready.open.end(), ready_.begin(), ready_.end());
  for (Lane* lane : running_) {
    if (!lane->taken) continue;
    ready_.push_back(lane);
    ready.drawn.push_back(lane);
  }
  // Only to be drawn ahead, and no pages for it.
  if (running_.empty() && any_waited && !any_ran) drawing_.clear();
}

void DecodeCall::commit() {
  std::ranges::sort(ready_, {}, &Lane::index);  // in the order of their branches
  for (Lane* lane : ready_) {
    lane->logits.reset();
    if (!lane->dead) commit_token(*lane);
  }
}

void DecodeCall::conclude() {
  for (Lane* lane : ready_) {
    conclude(*lane);
    go_on(*lane);
  }
  if (drafting_ != nullptr) drafting_->drop();
  ++step_;
  retire_finished();
  settle();
}

/// Tokens that need no step of their own: those that the constraint leaves no choice about, whose
/// rows will be one pass where they were not drafted; and as long as the lane's tokens are those
/// that were drafted, the next one is drawn at once.
void DecodeCall::go_on(Lane& lane) {
  while (lane.out.finish == Finish::kRunning) {
    const bool was_drafted = drafting_ != nullptr && drafting_->follow(lane);
    if (!lane.forced.empty()) {
      lane.token = lane.forced.back();
      lane.forced.pop_back();
      lane.was_forced = true;
      lane.mask.reset();  // of a draw that is not made
    } else if (was_drafted) {
      Lane* const one = &lane;
      sample_lanes(engine_, std::span(&one, 1));
    } else {
      return;
    }
    {
      const TreeLock lock(engine_.tree_mutex);
      lane.logits.reset();
      if (!lane.dead) commit_token(lane);
    }
    conclude(lane);
  }
}

void DecodeCall::commit_token(Lane& lane) {
  ++lane.length;
  if (lane.ahead != nullptr) {
    commit_ahead(lane);
  } else {
    commit(lane);
  }
  if (!start_.valid() && lane.matcher.valid()) {
    lane.branch->rare.edit().constraint.matcher = matcher_of(lane);
  }
  lane.rows = 0;
  lane.taken = lane.in_tree = false;
  add_token(lane);  // (with the lock: others may fork the branch, and its text with it)
}

void DecodeCall::commit(Lane& lane) {
  BranchState& branch = *lane.branch;
  if (!lane.in_tree) session_->append(branch, std::span(&lane.token, 1));
  session_->count_independent(branch, lane.length - 1);
  if (!lane.was_forced) branch.logprob += lane.chosen.logprob;
  ++branch.tokens_generated;
  ++session_->stats.tokens_generated;
  note_token();
}

void DecodeCall::commit_ahead(Lane& lane) {
  engine_.tree->append(lane.branch->tip, std::span(&lane.token, 1));
  lane.ahead->tokens.push_back({lane.chosen, lane.rows, lane.was_forced});
  if (start_.valid()) lane.ahead->matcher = lane.matcher;
  ++session_->stats.tokens_ahead;
  engine_.debug_check();
}

void DecodeCall::add_token(Lane& lane) {
  lane.out.ids.push_back(lane.token);
  if (params_.top_logprobs >= 0) lane.out.logprobs.push_back(std::move(lane.chosen));
  if (!engine_.detokenizer) return;
  const bool may_end = std::ssize(lane.out.ids) >= sampler_.settings().min_tokens;
  const bool ends = lane.matcher.valid() && lane.matcher.grammar()->vocabulary().is_end(lane.token);
  if (engine_.detokenizer->incremental_ok()) {
    if (ends) lane.before_end = lane.branch->text;
    const std::string text = engine_.detokenizer->push(lane.branch->text, lane.token);
    if (!ends) lane.stopped = lane.watch.add(text, may_end);
  } else if (!ends) {
    lane.stopped = lane.watch.replace(engine_.tokenizer->decode(lane.out.ids, true), may_end);
  }
  if (lane.matcher.valid() && !params_.stop.empty()) {
    lane.text_ends.push_back(lane.watch.text().size());
  }
}

/// Whether the token ends the lane; and what is to be told of it.
void DecodeCall::conclude(Lane& lane) {
  const auto is_one_of = [&](const auto& tokens) {
    return std::ranges::find(tokens, lane.token) != tokens.end();
  };
  if (lane.dead) {
    return finish(lane, sampler_.error() ? Finish::kCancelled : Finish::kDeadEnd);
  }
  if (lane.complete && lane.forced.empty() && !lane.stopped) {
    finish(lane, Finish::kStop);
  } else if (!params_.ignore_eos && is_one_of(engine_.model_info.eos)) {
    finish(lane, Finish::kEos);
  } else if (lane.stopped || is_one_of(params_.stop_tokens)) {
    if (lane.stopped) {
      lane.out.stop = lane.watch.stop();
    } else {
      lane.out.stop_token = lane.token;
    }
    finish(lane, may_end_at_stop(lane) ? Finish::kStop : Finish::kStopInside);
  } else if (static_cast<std::int64_t>(lane.out.ids.size()) == params_.max_tokens ||
             at_position_limit(lane.length)) {
    finish(lane, Finish::kLength);
  }
  if (lane.ahead == nullptr && (params_.on_token || params_.on_step || streams_)) {
    show(lane);
  }
}

void DecodeCall::show(Lane& lane) {
  const bool last = lane.out.finish != Finish::kRunning;
  StreamToken token{lane.index, step_, lane.token, lane.watch.take_visible(last)};
  // With the last token goes what only the end of the text decides: an unfinished character.
  if (last && engine_.detokenizer) token.text += lane.out.text.substr(lane.watch.text().size());
  if (params_.top_logprobs >= 0) token.chosen = lane.out.logprobs.back();
  if (params_.on_token || params_.on_step) news_.push_back({lane.branch->id, token});
  if (!streams_) return;
  const std::scoped_lock lock(stream_mutex_);
  stream_.push_back(std::move(token));
}

/// Who goes on after ends goes on behind the model's positions, too, as far as it can.
std::int64_t DecodeCall::position_limit() const {
  if (!params_.ignore_eos || engine_.model_info.positions.hard) return engine_.position_limit;
  return std::numeric_limits<std::int64_t>::max();
}

void DecodeCall::finish(Lane& lane, Finish reason) {
  lane.out.finish = reason;
  lane.branch->finish = reason;
  if (lane.ahead == nullptr) note_finish(reason);
  if (params_.enough && !was_cut(lane) && lane.ahead == nullptr) unjudged_.push_back(&lane);
  if (!engine_.detokenizer) return;
  lane.out.text = lane.watch.text();
  if (lane.stopped || !engine_.detokenizer->incremental_ok()) return;
  // A copy: the branch may go on.
  DetokState rest = lane.before_end ? *lane.before_end : lane.branch->text;
  lane.out.text += engine_.detokenizer->finish(rest);
}

/// Those that have finished run no more.
void DecodeCall::retire_finished() {
  std::vector<const Lane*> finished;
  std::ranges::copy_if(running_, std::back_inserter(finished),
                       [](const Lane* lane) { return lane->out.finish != Finish::kRunning; });
  if (!finished.empty()) {
    const TreeLock lock(engine_.tree_mutex);
    for (const Lane* lane : finished) tell(*lane);
  }
  if (drafting_ != nullptr) {
    for (const Lane* lane : finished) drafting_->remember(*lane->branch);
  }
  for (auto* lanes : {&running_, &drawing_}) {
    std::erase_if(*lanes, [](const Lane* lane) { return lane->out.finish != Finish::kRunning; });
  }
}

void DecodeCall::tell(const Lane& lane) {
  tell_finish(*lane.branch, std::ssize(lane.out.ids), elapsed_ms());
}

/// Whether the caller's functions are to be called now, or all has been done.
void DecodeCall::settle() {
  if (has_failed()) {
    news_.clear();
    unjudged_.clear();
  }
  const bool has_thrown = sampler_.error() && !has_failed();
  if (!news_.empty() || !unjudged_.empty() || has_thrown) {
    make_due();
  } else if (running_.empty() && (!lanes_.empty() || drawing_.empty())) {
    end();
  }
}

void DecodeCall::hear() {
  tell_step(std::exchange(news_, {}));
  if (sampler_.error() && !has_failed()) std::rethrow_exception(sampler_.error());
  if (!has_failed()) judge();
  have_heard();
  settle();
}

void DecodeCall::tell_step(std::span<const News> news) {
  std::vector<TokenEvent> events;
  for (const News& one : news) {
    const StreamToken& token = one.token;
    events.push_back({.branch = one.branch,
                      .index = token.index,
                      .token = token.token,
                      .text = token.text,
                      .chosen = token.chosen ? &*token.chosen : nullptr});
    if (params_.on_token) params_.on_token(events.back());
  }
  if (params_.on_step && !events.empty() && !params_.on_step(events)) fail();
}

/// Shows the caller's rule who has finished, as though all branches went token by token together:
/// one is shown when no other can finish before it any more, by tokens and then by place. (Where
/// not all fit into a step or into the pages, some run ahead of others.) For the same reason one
/// that pages or budget cut short where it was level with the last one shown, or further, is a
/// loser as well.
void DecodeCall::judge() {
  if (unjudged_.empty()) return;
  constexpr std::size_t kNever = std::numeric_limits<std::size_t>::max();
  std::pair earliest(kNever, kNever);
  for (const Lane* lane : running_) {
    // A dead end is found where a token is to be drawn, and adds none.
    const std::size_t more = lane->matcher.valid() || sampler_.bans_any() ? 0 : 1;
    earliest = std::min(earliest, std::pair(lane->out.ids.size() + more, lane->index));
  }
  const auto place = [](const Lane* lane) { return std::pair(lane->out.ids.size(), lane->index); };
  std::ranges::sort(unjudged_, {}, place);
  for (std::size_t i = 0; i < unjudged_.size(); ++i) {
    const Lane& lane = *unjudged_[i];
    if (place(&lane) > earliest) {
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
    abandon(losers);
    running_.clear();
    break;
  }
  unjudged_.clear();
}

void DecodeCall::abandon(std::span<Lane* const> lanes) {
  for (Lane* lane : lanes) {
    lane->out = {};
    lane->out.finish = lane->branch->finish = Finish::kAbandoned;
    const TreeLock lock(engine_.tree_mutex);
    tell(*lane);
    let_go(*lane->branch);
    if (lane->branch->orphaned) {
      session_->drop(lane->branch);
    } else {
      session_->prune(std::span(branches_).subspan(lane->index, 1));
    }
  }
}

}  // namespace dendrite
