#include "statistics.h"

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <numeric>

namespace dendrite::bench {
namespace {

constexpr double kZ = 1.959964;  // 97.5 % of the normal distribution

double sorted_median(const std::vector<double>& sorted) {
  const std::size_t half = sorted.size() / 2;
  return sorted.size() % 2 == 1 ? sorted[half] : 0.5 * (sorted[half - 1] + sorted[half]);
}

}  // namespace

Summary summarize(std::span<const double> samples, Better better) {
  std::vector<double> sorted(samples.begin(), samples.end());
  std::sort(sorted.begin(), sorted.end());
  const auto count = static_cast<double>(sorted.size());
  const auto at = [&](double index) {
    return sorted[static_cast<std::size_t>(std::clamp(index, 0.0, count - 1))];
  };
  Summary out;
  out.median = sorted_median(sorted);
  out.p90 = better == Better::kLow ? at(std::ceil(0.9 * count) - 1) : at(std::floor(0.1 * count));
  out.p99 = better == Better::kLow ? at(std::ceil(0.99 * count) - 1) : at(std::floor(0.01 * count));
  out.min = sorted.front();
  // The median lies between these order statistics in 95 % of cases (binomial, normal
  // approximation).
  const double half_width = 0.5 * kZ * std::sqrt(count);
  out.ci_low = at(std::floor(0.5 * count - half_width));
  out.ci_high = at(std::ceil(0.5 * count + half_width) - 1);
  out.trials = static_cast<std::int64_t>(sorted.size());
  return out;
}

double mean(std::span<const double> samples) {
  return std::accumulate(samples.begin(), samples.end(), 0.0) / static_cast<double>(samples.size());
}

double median(std::span<const double> samples) {
  std::vector<double> sorted(samples.begin(), samples.end());
  std::sort(sorted.begin(), sorted.end());
  return sorted_median(sorted);
}

Interval wilson(std::int64_t hits, std::int64_t trials) {
  if (trials == 0) return {0, 1};
  const auto n = static_cast<double>(trials);
  const double p = static_cast<double>(hits) / n;
  const double z2 = kZ * kZ;
  const double centre = (p + z2 / (2 * n)) / (1 + z2 / n);
  const double half = kZ / (1 + z2 / n) * std::sqrt(p * (1 - p) / n + z2 / (4 * n * n));
  return {std::max(0.0, centre - half), std::min(1.0, centre + half)};
}

}  // namespace dendrite::bench
