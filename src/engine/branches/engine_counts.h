#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "backend/backend.h"
#include "dendrite/events.h"
#include "dendrite/types.h"
#include "engine/branches/kl_record.h"

namespace dendrite {

/// Sums of an engine so far, as they stand after a turn.
struct RateMark {
  std::int64_t tokens = 0;  // generated
  std::int64_t bytes = 0;   // read by steps
  double busy_ms = 0;
  double step_ms = 0;
};

/// The marks of the last turns that made a step: what came between the oldest of them and the
/// newest is what rates are of. Time when nothing was computed is in neither.
class RateWindow {
 public:
  static constexpr std::size_t kTurns = 256;

  void add(const RateMark& mark) { marks_[++last_ % marks_.size()] = mark; }
  double tokens_per_second() const {
    return per_second(static_cast<double>(newest().tokens - oldest().tokens),
                      newest().busy_ms - oldest().busy_ms);
  }
  double bytes_per_second() const {
    return per_second(static_cast<double>(newest().bytes - oldest().bytes),
                      newest().step_ms - oldest().step_ms);
  }

 private:
  static double per_second(double count, double ms) { return ms > 0 ? count / ms * 1e3 : 0; }
  const RateMark& newest() const { return marks_[last_ % marks_.size()]; }
  const RateMark& oldest() const {
    return marks_[last_ < kTurns ? 0 : (last_ + 1) % marks_.size()];
  }

  std::array<RateMark, kTurns + 1> marks_{};  // the first one is of an engine that did nothing
  std::size_t last_ = 0;
};

/// A call that is over; times since it began.
struct CallRecord {
  CallKind kind = CallKind::kPrefill;
  Finish finish = Finish::kRunning;
  std::int64_t branches = 0;
  std::int64_t rows = 0;
  std::int64_t tokens = 0;
  double queued_ms = 0;
  double first_token_ms = 0;  // 0: it generated none
  double ms = 0;
};

/// Sums over calls that are over, see EngineStats.
struct CallTotals {
  std::int64_t calls = 0;
  std::int64_t first_tokens = 0;
  double ms = 0;
  double queued_ms = 0;
  double first_token_ms = 0;

  void add(const CallRecord& call);
};

/// What an engine has counted, for EngineStats and events.
struct EngineCounts {
  std::int64_t steps = 0;
  std::int64_t steps_early = 0;
  Stats ended_sessions;  // sums over those that are gone
  double step_ms = 0;    // spent in steps
  double busy_ms = 0;    // spent in turns
  std::int64_t bytes_read = 0;
  RateWindow rates;
  CallTotals calls;
  std::int64_t peak_pages = 0;  // in use, to a twentieth ...
  std::int64_t peak_slots = 0;  // ... and slots in use then
  PassCounts passes;            // of the backend, at the last step
  SpeculationStats speculation;
  std::int64_t composed_hits = 0;
  MoveTotals moves;               // of the backend, at the last step
  KlRecord kl_record;             // of compositions
  std::int64_t unique_bytes = 0;  // at the last step, as in Event
  std::int64_t naive_bytes = 0;
};

/// What a session has counted, in a sum over several.
void add(Stats& sum, const Stats& part);

}  // namespace dendrite
