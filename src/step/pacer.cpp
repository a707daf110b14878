#include "step/pacer.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace dendrite {
namespace {

/// Steps of fewer rows say little of what a row costs: most of their time does not depend on it.
constexpr std::int64_t kTelling = 32;
/// So many rows where nothing is known.
constexpr std::int64_t kFirst = 64;
/// Products take whole tiles of rows.
constexpr std::int64_t kTile = 128;
/// Of the target: what all but one step in a hundred may take, and what the mean is planned for.
constexpr double kLongest = 1.2;
constexpr double kMostPlanned = 1.15;
constexpr double kLeastPlanned = 0.6;
/// So many times the mean distance from what was expected is the upper end of a hundred steps.
constexpr double kUpperEnd = 3;
/// Weights of a new step in the means.
constexpr double kNew = 0.25;

}  // namespace

void Pacer::record(std::int64_t rows, double ms) {
  if (rows < kTelling) return;
  const double row_ms = ms / static_cast<double>(rows);
  const bool alike = row_ms_ > 0 && rows >= rows_ / 2 && rows <= 2 * rows_;
  if (alike) {
    const double off = std::min(1.0, std::abs(row_ms / row_ms_ - 1));
    scatter_ += kNew * (off - scatter_);
    row_ms_ += kNew * (row_ms - row_ms_);
  } else if (rows > rows_ || row_ms > row_ms_) {
    row_ms_ = row_ms;
  }
  rows_ = rows;
}

std::int64_t Pacer::rows(double target_ms) const {
  if (std::isinf(target_ms)) return std::numeric_limits<std::int64_t>::max();
  if (row_ms_ == 0) return kFirst;
  const double part =
      std::clamp(kLongest / (1 + kUpperEnd * scatter_), kLeastPlanned, kMostPlanned);
  const auto fits = static_cast<std::int64_t>(part * target_ms / row_ms_);
  return std::max(kTelling, fits < 2 * kTile ? fits : fits - fits % kTile);
}

}  // namespace dendrite
