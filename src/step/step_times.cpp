#include "step/step_times.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <utility>

#include "core/size_class.h"

namespace dendrite {
namespace {

/// So many steps after it was seen, the time that optional rows are measured by is seen again: one
/// step without them.
constexpr std::int64_t kFresh = 256;
/// And what was not seen for so long is forgotten: one bad moment must not keep rows away for ever.
constexpr std::int64_t kForgotten = 2048;
/// What was never seen is tried up to so many times the rows of the nearest count that was.
constexpr std::int64_t kGrowth = 2;
/// Slower steps than so many times the lower end count as that: something else held them up.
constexpr double kOutlier = 1.25;

}  // namespace

void StepTimes::record(std::int64_t rows, double ms) {
  ++steps_;
  tries_ = std::min(kTries, tries_ + 1 / kStepsPerTry);
  const double first = std::min(ms, kOutlier * linear(rows));  // it may be an outlier, too
  const auto [at, is_new] =
      points_.try_emplace(size_class(rows), Point{rows, first, first, steps_});
  Point& point = at->second;
  if (!is_new) {
    if (steps_ - point.step > kForgotten) point.low = point.high = ms;
    const double told = std::min(ms, kOutlier * point.low);
    point.low += (told - point.low) / (told < point.low ? 2 : 8);
    point.high += (told - point.high) / (told > point.high ? 2 : 8);
    point.rows = rows;
    point.step = steps_;
  }
  judge(rows, ms, point);
}

/// What a step would take whose time grows with its rows, from those with fewer rows.
double StepTimes::linear(std::int64_t rows) const {
  double ms = std::numeric_limits<double>::infinity();
  for (const auto& [size, point] : points_) {
    if (point.rows >= rows || steps_ - point.step > kForgotten) continue;
    ms = static_cast<double>(rows) / static_cast<double>(point.rows) * point.low;
  }
  return ms;
}

/// Whether optional rows made the step too slow.
void StepTimes::judge(std::int64_t rows, double ms, const Point& point) {
  const std::optional<Asked> asked = std::exchange(asked_, std::nullopt);
  if (!asked || rows <= asked->rows) return;
  if (ms > asked->allowed && point.high > asked->allowed) tries_ = std::max(0.0, tries_ - 1);
}

std::int64_t StepTimes::widest(std::int64_t rows, double slack, std::int64_t most) {
  asked_.reset();
  if (std::isinf(slack)) return std::max(rows, most);
  const auto alone = points_.find(size_class(rows));
  if (alone == points_.end() || steps_ - alone->second.step > kFresh) return rows;
  const double allowed = slack * alone->second.low;
  asked_ = {rows, allowed};
  std::int64_t known = rows;  // to be fast enough
  std::int64_t hoped = rows;
  for (std::int64_t next = rows + 1; next <= most; ++next) {
    const Estimate estimate = expected(next);
    if (estimate.low > allowed) break;
    hoped = next;
    if (estimate.seen && estimate.high <= allowed) known = next;
  }
  if (tries_ < 1) return known;
  return known + (hoped - known + 1) / 2;  // halfway: few tries are too slow
}

std::optional<double> StepTimes::usual(std::int64_t rows) const {
  const Estimate estimate = expected(rows);
  return std::isinf(estimate.low) ? std::nullopt : std::optional(estimate.low);
}

StepTimes::Estimate StepTimes::expected(std::int64_t rows) const {
  const Point* below = nullptr;
  for (const auto& [size, point] : points_) {
    if (steps_ - point.step > kForgotten) continue;
    if (size == size_class(rows)) return {point.low, point.high, true};
    if (point.rows < rows) {
      below = &point;
      continue;
    }
    if (below == nullptr || rows > kGrowth * below->rows) break;
    const double share = static_cast<double>(rows) / static_cast<double>(point.rows);
    return {.low = std::max(below->low, share * point.low)};
  }
  if (below == nullptr || rows > kGrowth * below->rows) {
    return {.low = std::numeric_limits<double>::infinity()};
  }
  return {.low = below->low};
}

}  // namespace dendrite
