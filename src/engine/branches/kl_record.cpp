#include "engine/branches/kl_record.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace dendrite {

void KlRecord::add(KlHistogram& histogram, double kl) {
  const auto bucket =
      std::ranges::lower_bound(KlHistogram::kBounds, kl) - KlHistogram::kBounds.begin();
  ++histogram.counts[static_cast<std::size_t>(bucket)];
  histogram.sum += kl;
}

void KlRecord::add_audit(double kl, double distance) {
  // Below this both are rounding.
  constexpr double kLeast = 1e-9;
  add(audits_, kl);
  if (distance < kLeast) return;
  ratios_[seen_++ % kRatios] = kl / distance;
  if (seen_ < kFewest) return;
  std::vector<double> sorted(
      ratios_.begin(), ratios_.begin() + static_cast<std::ptrdiff_t>(std::min(seen_, kRatios)));
  const auto place =
      static_cast<std::size_t>(std::ceil(0.9 * static_cast<double>(sorted.size()))) - 1;
  std::ranges::nth_element(sorted, sorted.begin() + static_cast<std::ptrdiff_t>(place));
  factor_ = sorted[place];
}

}  // namespace dendrite
