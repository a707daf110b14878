#include "step/pacer.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace dendrite {
namespace {

/// Steps of fewer rows say little of what a row costs: most of their time does not depend on it.
constexpr std::int64_t kTelling = 32;
/// So many rows to begin with, where nothing is known, and growth from step to step at most.
constexpr std::int64_t kFirst = 64;
constexpr std::int64_t kGrowth = 2;
/// Times scatter: a step is planned to take so much of its target.
constexpr double kMargin = 0.85;

}  // namespace

void Pacer::record(std::int64_t rows, double ms) {
  if (rows < kTelling) return;
  const double row_ms = ms / static_cast<double>(rows);
  // Slower at once, faster by halves.
  row_ms_ = row_ms > row_ms_ ? row_ms : (row_ms_ + row_ms) / 2;
  rows_ = rows;
}

std::int64_t Pacer::rows(double target_ms) const {
  if (std::isinf(target_ms)) return std::numeric_limits<std::int64_t>::max();
  if (row_ms_ == 0) return kFirst;
  const double fits = kMargin * target_ms / row_ms_;
  return std::max(kTelling, std::min(static_cast<std::int64_t>(fits), kGrowth * rows_));
}

}  // namespace dendrite
