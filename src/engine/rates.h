#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

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

/// Sums over calls that are over, see EngineStats.
struct CallTotals {
  std::int64_t calls = 0;
  std::int64_t first_tokens = 0;
  double ms = 0;
  double queued_ms = 0;
  double first_token_ms = 0;
};

}  // namespace dendrite
