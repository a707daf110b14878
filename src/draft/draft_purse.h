#pragma once

#include <algorithm>
#include <cstdint>
#include <functional>
#include <optional>

#include "draft/purse.h"

namespace dendrite {

/// Whether it pays to ask a model for drafts, and for how many tokens: by what turns with and
/// without them took. It keeps a purse: drafts pay their time into it or out of it, and a small
/// part of all time goes into it. What is not expected to pay is tried now and then, for what has
/// come together; and whatever is expected, what was lost is no more than that, a few turns, and
/// what the model read last.
class DraftPurse {
 public:
  /// `ratio`: time of the model's passes by the engine's steps, as a first guess. `one_pass`: a
  /// draft takes one, however long it is; else one for each token.
  explicit DraftPurse(double ratio, bool one_pass = false) : ratio_(ratio), one_pass_(one_pass) {}

  /// What a turn is about.
  struct Turn {
    std::int64_t lanes = 0;  // > 0
    std::int64_t most = 0;   // tokens that may be drafted for each
    std::int64_t ahead = 0;  // tokens that a lane may still get: what reading is to pay for
    double room_ms = 0;      // that drafting may take at most
    /// The chance that the i-th drafted token is taken where those before it were.
    std::function<double(std::int64_t i)> taken;
    /// How long a step of so many rows takes; nothing where that is not known.
    std::function<std::optional<double>(std::int64_t rows)> step_ms;
  };
  /// Tokens to draft for each lane; 0: none. `unread`: rows that the model has to compute first.
  std::int64_t length(const Turn& turn, std::int64_t unread);

  /// A turn without drafts took so long.
  void record_plain(std::int64_t lanes, double ms);
  /// One with them.
  struct Drafted {
    std::int64_t lanes = 0;
    std::int64_t tokens = 0;  // drafted for each
    std::int64_t unread = 0;  // rows that the model computed first
    double draft_ms = 0;
    double turn_ms = 0;      // in all
    std::int64_t taken = 0;  // tokens, of all lanes
  };
  void record(const Drafted& turn);

 private:
  double passes(std::int64_t tokens) const {
    return one_pass_ ? std::min(1.0, static_cast<double>(tokens)) : static_cast<double>(tokens);
  }

  /// What is known for a number of lanes.
  struct Known {
    double ratio = 0;  // of a pass, by a plain turn
    Purse purse;
  };
  Known& known_of(std::int64_t lanes) {
    if (Known* known = known_.find(lanes)) return *known;
    Known& known = known_.at(lanes, {.ratio = ratio_, .purse = {}});
    known.purse = {};  // what others have gained is not for these to lose
    return known;
  }

  PlainTurns plain_;
  ByLanes<Known> known_;
  const double ratio_;  // a first guess
  const bool one_pass_;
  std::optional<double> read_ms_;  // a row
  double lent_ms_ = 0;             // for what was read, which pays later: less with each turn
};

}  // namespace dendrite
