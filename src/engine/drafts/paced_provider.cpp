#include "engine/drafts/paced_provider.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include "engine/calls/lane.h"
#include "step/stepper.h"

namespace dendrite {
namespace {

/// Turns without drafts after one that failed.
constexpr std::int64_t kPause = 1024;

double ms_since(std::chrono::steady_clock::time_point begin) {
  const std::chrono::duration<double, std::milli> since = std::chrono::steady_clock::now() - begin;
  return since.count();
}

}  // namespace

std::vector<LaneDraft*> PacedProvider::with_one_missing(std::span<LaneDraft* const> wanted,
                                                        std::int64_t places) {
  std::vector<LaneDraft*> drafts;
  const TreeLock lock(engine_.tree_mutex);
  for (LaneDraft* draft : wanted) {
    const Tip& tip = draft->lane->branch->tip;
    const std::int64_t length = engine_.tree->length(tip);
    const std::int64_t missing = length - engine_.tree->computed(tip);
    if (missing > kLong) return {};
    draft->is_impossible = length + places > engine_.info.kv_tokens;
    if (missing == 1 && !draft->is_impossible && draft->limits.depth > 0) drafts.push_back(draft);
  }
  return drafts;
}

bool PacedProvider::is_free(const LaneDraft* draft) {
  return std::isinf(draft->params->slack);
}

void PacedProvider::propose(std::span<LaneDraft* const> wanted, double slack) {
  turn_ = {};
  if (++turns_ < next_turn_) {
    for (LaneDraft* draft : wanted) draft->is_impossible = true;
    return;
  }
  const std::vector<LaneDraft*> drafts = choose(wanted);
  if (drafts.empty()) return;
  const bool alone = std::isinf(slack);
  if (alone) turn_.lanes = std::ssize(drafts);  // (what others take is not told from this)
  if (depth_for(drafts, slack, 0) == 0) return;
  if (engine_.stepper->has_begun()) {
    for (LaneDraft* draft : drafts) draft->is_wanted = true;
    return;
  }
  const auto begin = std::chrono::steady_clock::now();
  bool failed = false;
  try {
    const std::int64_t unread = prepare(drafts);
    const std::int64_t depth = depth_for(drafts, slack, unread);
    if (depth > 0) {
      fill(drafts, depth);
      turn_.drafted = depth;
      turn_.unread = unread;
    }
  } catch (const std::exception&) {  // a text goes on without drafts
    for (LaneDraft* draft : drafts) {
      draft->draft = {};
      draft->is_impossible = true;
    }
    next_turn_ = turns_ + kPause;
    failed = true;
  }
  turn_.draft_ms = ms_since(begin);
  tidy(failed);
}

std::int64_t PacedProvider::depth_for(std::span<LaneDraft* const> drafts, double slack,
                                      std::int64_t unread) {
  DraftPurse::Turn turn;
  turn.lanes = std::ssize(drafts);
  for (const LaneDraft* draft : drafts) {
    turn.most =
        std::max(turn.most, std::min({pace_.depth, draft->limits.depth, draft->limits.nodes}));
    turn.ahead += (draft->params->max_tokens - std::ssize(draft->lane->out.ids)) / turn.lanes;
  }
  if (std::ranges::all_of(drafts, is_free)) return turn.most;
  const TreeLock lock(engine_.tree_mutex);
  const StepTimes& times = *engine_.stepper->times;
  turn.step_ms = [&](std::int64_t rows) { return times.usual(rows); };
  turn.taken = [&](std::int64_t i) { return acceptance_.taken_at(i); };
  turn.room_ms = (slack - 1) * times.usual(turn.lanes).value_or(0);
  return purse_.length(turn, unread);
}

double PacedProvider::expected() const {
  double tokens = 0;
  double chance = 1;
  for (std::int64_t i = 1; i <= pace_.depth; ++i) {
    chance *= acceptance_.taken_at(i);
    tokens += chance;
  }
  return tokens;
}

void PacedProvider::learn(const LaneDraft& draft, std::int32_t came) {
  acceptance_.learn(draft.draft, draft.at, came);
}

void PacedProvider::conclude(const LaneDraft& draft) {
  const auto drafted = std::min(static_cast<std::int64_t>(draft.draft.level), draft.limits.depth);
  if (drafted == 0) return;
  const bool ended = draft.is_refused || draft.lane->out.finish != Finish::kRunning;
  acceptance_.learn_length(drafted, draft.came(), ended);
  turn_.taken += draft.taken();
}

void PacedProvider::end_turn(double ms) {
  const Turn turn = std::exchange(turn_, {});
  if (turn.lanes == 0) return;
  if (turn.drafted == 0 && turn.draft_ms == 0) return purse_.record_plain(turn.lanes, ms);
  purse_.record({turn.lanes, turn.drafted, turn.unread, turn.draft_ms, ms, turn.taken});
}

}  // namespace dendrite
