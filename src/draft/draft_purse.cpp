#include "draft/draft_purse.h"

#include <algorithm>
#include <cmath>

namespace dendrite {
namespace {

/// What is expected to give less is within what is not known.
constexpr double kLeastGain = 1.03;
/// A row of many costs this part of a row alone, before it was seen.
constexpr double kReadPart = 1.0 / 8;
/// Of what was lent for reading, with each turn.
constexpr double kRepaid = 1.0 / 64;
/// Slower than so many times what was expected: something else held it up.
constexpr double kOutlier = 3;
/// Rows from which on reading is timed.
constexpr std::int64_t kManyRows = 32;

}  // namespace

std::int64_t DraftPurse::length(const Turn& turn, std::int64_t unread) {
  const std::optional<double> alone_ms = turn.step_ms(turn.lanes);
  if (!plain_.is_fresh(turn.lanes) || !alone_ms) return 0;
  const double plain_ms = *plain_.ms(turn.lanes);
  const Known& known = known_of(turn.lanes);
  const double draft_ms = known.ratio * plain_ms;
  const double read_ms = static_cast<double>(unread) * read_ms_.value_or(draft_ms * kReadPart);
  std::int64_t best = 0;
  double best_gain = kLeastGain;
  double best_saved = 0;  // a turn
  double best_tokens = 1;
  double first_ms = 0;  // what the shortest draft takes beyond what it gives
  double tokens = 1;    // of each lane, in a turn
  double chance = 1;
  for (std::int64_t i = 1; i <= turn.most; ++i) {
    if (passes(i) * draft_ms > turn.room_ms) break;
    const std::optional<double> step_ms = turn.step_ms(turn.lanes * (1 + i));
    if (!step_ms) break;
    chance *= turn.taken(i);
    tokens += chance;
    const double turn_ms = plain_ms + (*step_ms - *alone_ms) + passes(i) * draft_ms;
    if (i == 1) first_ms = turn_ms - tokens * plain_ms;
    const double gain = tokens * plain_ms / turn_ms;
    if (gain <= best_gain) continue;
    best = i;
    best_gain = gain;
    best_saved = tokens * plain_ms - turn_ms;
    best_tokens = tokens;
  }
  if (best > 0) {
    const double turns = static_cast<double>(turn.ahead) / 2 / best_tokens;  // texts end early
    const bool is_paid = read_ms <= turns * best_saved;
    if (is_paid && known.purse.has_credit(plain_ms, lent_ms_)) return best;
    first_ms = std::max(0.0, first_ms);
  }
  const bool may_try = turn.most > 0 && turn.step_ms(2 * turn.lanes) && draft_ms <= turn.room_ms;
  return may_try && known.purse.ms() > 0 && known.purse.ms() >= first_ms + read_ms ? 1 : 0;
}

void DraftPurse::record_plain(std::int64_t lanes, double ms) {
  plain_.record(lanes, ms);
  known_of(lanes).purse.save(ms, *plain_.ms(lanes));
  lent_ms_ -= kRepaid * lent_ms_;
}

void DraftPurse::record(const Drafted& turn) {
  plain_.pass();
  if (!plain_.ms(turn.lanes)) return;
  const double plain_ms = *plain_.ms(turn.lanes);
  const double drafted = passes(turn.tokens);
  Known& known = known_of(turn.lanes);
  double expected_ms = drafted * known.ratio * plain_ms;
  if (turn.unread >= kManyRows + turn.lanes) {
    const double row_ms =
        std::max(0.0, turn.draft_ms - expected_ms) / static_cast<double>(turn.unread);
    read_ms_ = read_ms_ ? *read_ms_ + (row_ms - *read_ms_) / 4 : row_ms;
    lent_ms_ += turn.draft_ms;
    expected_ms = turn.draft_ms;
  } else if (turn.tokens > 0) {
    const double told_ms = std::min(turn.draft_ms, kOutlier * expected_ms);
    known.ratio += (told_ms / drafted / plain_ms - known.ratio) / 8;
  }
  const double got = static_cast<double>(turn.lanes + turn.taken) / static_cast<double>(turn.lanes);
  known.purse.pay(plain_ms * got - std::min(turn.turn_ms, kOutlier * (plain_ms + expected_ms)),
                  plain_ms);
  lent_ms_ -= kRepaid * lent_ms_;
}

}  // namespace dendrite
