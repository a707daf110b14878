#include "step/pacer.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <iterator>
#include <limits>
#include <utility>

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
/// What was not seen for so many steps says nothing of the next one.
constexpr std::int64_t kForgotten = 256;

int width_of(std::int64_t rows) {
  return std::bit_width(static_cast<std::uint64_t>(rows));
}

/// On the line from (x0, y0) to (x1, y1).
double on_line(double x, double x0, double y0, double x1, double y1) {
  return y0 + (x - x0) / (x1 - x0) * (y1 - y0);
}

}  // namespace

double Pacer::expected_ms(std::int64_t rows) const {
  const auto x = static_cast<double>(rows);
  const auto above =
      std::ranges::find_if(sizes_, [&](const auto& each) { return each.second.rows >= rows; });
  if (above == sizes_.begin() || above == sizes_.end()) {
    const Size& nearest = above == sizes_.end() ? sizes_.rbegin()->second : above->second;
    return nearest.ms * x / static_cast<double>(nearest.rows);
  }
  const Size& below = std::prev(above)->second;
  return on_line(x, static_cast<double>(below.rows), below.ms,
                 static_cast<double>(above->second.rows), above->second.ms);
}

void Pacer::record(std::int64_t rows, double ms, bool ended) {
  under_way_.rows += rows;
  under_way_.ms += ms;
  if (!ended) return;
  rows = under_way_.rows;
  ms = std::exchange(under_way_, {}).ms;
  if (rows < kTelling) return;
  ++steps_;
  std::erase_if(sizes_, [&](const auto& each) { return steps_ - each.second.step > kForgotten; });
  const auto found = sizes_.find(width_of(rows));
  if (found == sizes_.end()) {
    sizes_[width_of(rows)] = {rows, ms, steps_};
    return;
  }
  const double off = ms / expected_ms(rows) - 1;
  scatter_ += kNew * (std::min(1.0, std::abs(off)) - scatter_);
  found->second = {rows, expected_ms(rows), steps_};
  for (auto& [width, size] : sizes_) size.ms *= 1 + kNew * off;
}

std::int64_t Pacer::rows(double target_ms) const {
  if (std::isinf(target_ms)) return std::numeric_limits<std::int64_t>::max();
  if (sizes_.empty()) return kFirst;
  const double part =
      std::clamp(kLongest / (1 + kUpperEnd * scatter_), kLeastPlanned, kMostPlanned);
  const double planned_ms = part * target_ms;
  const auto found = std::find_if(sizes_.rbegin(), sizes_.rend(),
                                  [&](const auto& each) { return each.second.ms <= planned_ms; });
  const Size& below = found != sizes_.rend() ? found->second : sizes_.begin()->second;
  double fits = planned_ms / below.ms * static_cast<double>(below.rows);
  if (found != sizes_.rend() && found != sizes_.rbegin()) {
    const Size& above = std::prev(found)->second;
    fits = on_line(planned_ms, below.ms, static_cast<double>(below.rows), above.ms,
                   static_cast<double>(above.rows));
  }
  const auto whole = static_cast<std::int64_t>(fits);
  return std::max(kTelling, whole < 2 * kTile ? whole : whole - whole % kTile);
}

}  // namespace dendrite
