#include "step/shares.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace dendrite {

void share_rows(std::span<Share> shares, std::int64_t rows) {
  std::vector<Share*> open;
  for (Share& share : shares) open.push_back(&share);
  // Who wants less than its part gets that, and leaves the rest to the others.
  for (bool changed = true; changed;) {
    double weights = 0;
    for (const Share* share : open) weights += share->weight;
    const double each = static_cast<double>(rows) / weights;
    std::int64_t left = rows;
    const auto is_content = [&](Share* share) {
      if (static_cast<double>(share->wanted) > each * share->weight) return false;
      share->rows = share->wanted;
      share->credit = 0;
      left -= share->wanted;
      return true;
    };
    changed = std::erase_if(open, is_content) > 0;
    rows = left;
  }
  if (open.empty()) return;
  double weights = 0;
  for (const Share* share : open) weights += share->weight;
  const double each = static_cast<double>(rows) / weights;
  for (Share* share : open) {
    const double exact = each * share->weight + share->credit;
    share->rows =
        std::clamp(static_cast<std::int64_t>(std::floor(exact)), std::int64_t{0}, share->wanted);
    share->credit = exact - static_cast<double>(share->rows);
    rows -= share->rows;
  }
  // Whole rows are left over, or were given twice: by who is owed most, or least.
  while (rows != 0) {
    const auto owed = [&](const Share* share) {
      const bool can = rows > 0 ? share->rows < share->wanted : share->rows > 0;
      return can ? share->credit * (rows > 0 ? 1 : -1) : -INFINITY;
    };
    Share* share = *std::ranges::max_element(open, {}, owed);
    if (std::isinf(owed(share))) break;
    const std::int64_t one = rows > 0 ? 1 : -1;
    share->rows += one;
    share->credit -= static_cast<double>(one);
    rows -= one;
  }
  for (Share* share : open) share->credit = std::clamp(share->credit, -1.0, 1.0);
}

}  // namespace dendrite
