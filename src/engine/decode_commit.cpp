// A decode call after a step: its lanes' tokens, their text, who has ended; and what the caller's
// functions hear and say of it.
#include <algorithm>
#include <iterator>
#include <limits>

#include "engine/decode_call.h"
#include "engine/tell.h"

namespace dendrite {

void DecodeCall::take(std::span<const StepOutcome> outcomes, std::vector<Lane*>& ready) {
  ready_.clear();
  bool any_ran = false;
  bool any_waited = false;
  const TreeLock lock(engine_.tree_mutex);
  for (std::size_t i = 0; i < asking_.size(); ++i) {
    Lane& lane = *asking_[i];
    const StepOutcome& outcome = outcomes[i];
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
    lane.logits = engine_.tree->segment(lane.branch->tip)->logits;
    if (outcome.token >= 0) {
      ready_.push_back(&lane);
    } else if (lane.logits != nullptr) {
      ready_.push_back(&lane);
      lane.length = engine_.tree->length(lane.branch->tip);
      if (sampler_.wants_history()) lane.history = engine_.tree->tokens(lane.branch->tip);
    } else if (outcome.no_room) {
      finish(lane, Finish::kBudget);
    }
  }
  ready.insert(ready.end(), ready_.begin(), ready_.end());
  // Only to be drawn ahead, and no pages for it.
  if (running_.empty() && any_waited && !any_ran) drawing_.clear();
}

void DecodeCall::commit() {
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
      add_token(*lane);  // (with the lock: others may fork the branch, and its text with it)
    }
  }
  for (Lane* lane : ready_) conclude(*lane);
  retire_finished();
  settle();
}

void DecodeCall::commit(Lane& lane) {
  BranchState& branch = *lane.branch;
  if (!lane.taken) session_->append(branch, std::span(&lane.token, 1));
  session_->count_independent(branch, lane.length - 1);
  branch.logprob += lane.chosen.logprob;
  ++branch.tokens_generated;
  ++session_->stats.tokens_generated;
}

void DecodeCall::commit_ahead(Lane& lane) {
  engine_.tree->append(lane.branch->tip, std::span(&lane.token, 1));
  lane.ahead->tokens.push_back({lane.chosen, lane.rows});
  ++session_->stats.tokens_ahead;
  engine_.debug_check();
}

void DecodeCall::add_token(Lane& lane) {
  lane.out.ids.push_back(lane.token);
  if (params_.top_logprobs >= 0) lane.out.logprobs.push_back(std::move(lane.chosen));
  if (engine_.detokenizer) {
    lane.stopped = engine_.detokenizer->incremental_ok()
                       ? lane.watch.add(engine_.detokenizer->push(*lane.branch->text, lane.token))
                       : lane.watch.replace(engine_.tokenizer->decode(lane.out.ids, true));
  }
}

/// Whether the token ends the lane; and what is to be told of it.
void DecodeCall::conclude(Lane& lane) {
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
  if (lane.ahead == nullptr && (params_.on_token || streams_)) show(lane);
}

void DecodeCall::show(Lane& lane) {
  const bool last = lane.out.finish != Finish::kRunning;
  StreamToken token{lane.index, lane.token, lane.watch.take_visible(last)};
  // With the last token goes what only the end of the text decides: an unfinished character.
  if (last && engine_.detokenizer) token.text += lane.out.text.substr(lane.watch.text().size());
  if (params_.on_token) news_.push_back({lane.branch->id, token});
  if (!streams_) return;
  const std::scoped_lock lock(stream_mutex_);
  stream_.push_back(std::move(token));
}

bool DecodeCall::at_position_limit(std::int64_t length) const {
  return engine_.config.max_positions_hard && length >= engine_.config.max_positions;
}

void DecodeCall::finish(Lane& lane, Finish reason) {
  lane.out.finish = reason;
  lane.branch->finish = reason;
  if (params_.enough && !was_cut(lane) && lane.ahead == nullptr) unjudged_.push_back(&lane);
  if (!engine_.detokenizer) return;
  lane.out.text = lane.watch.text();
  if (lane.stopped || !engine_.detokenizer->incremental_ok()) return;
  DetokState rest = *lane.branch->text;  // a copy: the branch may go on
  lane.out.text += engine_.detokenizer->finish(rest);
}

/// Those that have finished run no more.
void DecodeCall::retire_finished() {
  for (const Lane* lane : running_) {
    if (lane->out.finish != Finish::kRunning) tell(*lane);
  }
  for (auto* lanes : {&running_, &drawing_}) {
    std::erase_if(*lanes, [](const Lane* lane) { return lane->out.finish != Finish::kRunning; });
  }
}

void DecodeCall::tell(const Lane& lane) {
  const TreeLock lock(engine_.tree_mutex);
  tell_finish(*lane.branch, std::ssize(lane.out.ids), elapsed_ms());
}

/// Whether the caller's functions are to be called now, or all has been done.
void DecodeCall::settle() {
  if (has_failed()) {
    news_.clear();
    unjudged_.clear();
  }
  if (!news_.empty() || !unjudged_.empty()) {
    make_due();
  } else if (running_.empty() && (!lanes_.empty() || drawing_.empty())) {
    end();
  }
}

void DecodeCall::hear() {
  for (const News& news : std::exchange(news_, {})) {
    params_.on_token({news.branch, news.token.index, news.token.token, news.token.text});
  }
  judge();
  have_heard();
  settle();
}

/// Shows the caller's rule who has finished, as though all branches went token by token together:
/// one is shown when no other can finish with fewer tokens any more. (Where not all fit into a
/// step or into the pages, some run ahead of others.) For the same reason one that pages or
/// budget cut short where it was level with the last one shown, or further, is a loser as well.
void DecodeCall::judge() {
  if (unjudged_.empty()) return;
  std::size_t fewest = std::numeric_limits<std::size_t>::max();
  for (const Lane* lane : running_) fewest = std::min(fewest, lane->out.ids.size());
  std::ranges::sort(unjudged_, {},
                    [](const Lane* lane) { return std::pair(lane->out.ids.size(), lane->index); });
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
    tell(*lane);
    const TreeLock lock(engine_.tree_mutex);
    let_go(*lane->branch);
    if (lane->branch->orphaned) {
      session_->drop(lane->branch);
    } else {
      session_->prune(branches_.subspan(lane->index, 1));
    }
  }
}

}  // namespace dendrite
