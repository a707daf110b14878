#include "engine/step_times.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

namespace dendrite {
namespace {

/// So many steps after it was seen, the time that optional rows are measured by is seen again: one
/// step without them.
constexpr std::int64_t kFresh = 256;
/// And what was not seen for so long is forgotten: one bad moment must not keep rows away for ever.
constexpr std::int64_t kForgotten = 2048;
/// What was never seen is tried up to so many times the rows of the nearest count that was.
constexpr std::int64_t kGrowth = 2;

/// Up to 16 rows each count by itself, then 8 to an octave.
std::int64_t bucket_of(std::int64_t rows) {
  const int width = std::bit_width(static_cast<std::uint64_t>(rows));
  const int drop = std::max(0, width - 4);
  return rows >> drop << drop;
}

}  // namespace

void StepTimes::record(std::int64_t rows, double ms) {
  ++steps_;
  const auto [at, is_new] = points_.try_emplace(bucket_of(rows), Point{rows, ms, steps_});
  if (is_new) return;
  Point& point = at->second;
  if (steps_ - point.step > kForgotten) point.ms = ms;
  // Near the lower end of what is seen: a step is held up by others more often than sped up.
  point.ms += (ms - point.ms) / (ms < point.ms ? 2 : 8);
  point.rows = rows;
  point.step = steps_;
}

std::int64_t StepTimes::widest(std::int64_t rows, double slack, std::int64_t most) const {
  if (std::isinf(slack)) return std::max(rows, most);
  const auto alone = points_.find(bucket_of(rows));
  if (alone == points_.end() || steps_ - alone->second.step > kFresh) return rows;
  const double allowed = slack * alone->second.ms;
  std::int64_t known = rows;  // to be fast enough
  std::int64_t hoped = rows;
  for (std::int64_t next = rows + 1; next <= most; ++next) {
    const Estimate estimate = expected(next);
    if (estimate.ms > allowed) break;
    hoped = next;
    if (estimate.seen) known = next;
  }
  return known + (hoped - known + 1) / 2;  // halfway: few tries are too slow
}

StepTimes::Estimate StepTimes::expected(std::int64_t rows) const {
  const Point* below = nullptr;
  for (const auto& [bucket, point] : points_) {
    if (steps_ - point.step > kForgotten) continue;
    if (bucket == bucket_of(rows)) return {point.ms, true};
    if (point.rows < rows) {
      below = &point;
      continue;
    }
    if (below == nullptr || rows > kGrowth * below->rows) break;
    const double share = static_cast<double>(rows) / static_cast<double>(point.rows);
    return {std::max(below->ms, share * point.ms), false};
  }
  if (below == nullptr || rows > kGrowth * below->rows) {
    return {std::numeric_limits<double>::infinity(), false};
  }
  return {below->ms, false};
}

}  // namespace dendrite
