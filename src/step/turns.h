#pragma once

#include <algorithm>
#include <cstdint>
#include <tuple>
#include <vector>

namespace dendrite {

/// What decides when a branch's turn comes in a step that may not have rows for all.
struct Turn {
  int priority = 0;
  bool is_long = false;     // beside others: takes what they leave
  std::int64_t tokens = 0;  // generated in this call
  std::int64_t place = 0;   // those that share pages are neighbours
  std::int64_t waited = 0;  // steps in a row whose rows ran out before its turn
};

/// Steps without a row after which one's turn comes before those of higher priority, ...
inline constexpr std::int64_t kPatience = 8;
/// ... for at most this part of a step's rows (at least one).
inline constexpr std::int64_t kPatientShare = 8;

/// Puts whoever goes first first: by priority, then short ones before long ones, then those with
/// the fewest tokens, then by place, so that a step of few rows reads few pages. Nobody starves:
/// before them come those that have waited for kPatience steps, longest first, as many as may. `L`
/// has a member `turn`.
template <typename L>
void order_turns(std::vector<L*>& lanes, std::int64_t rows) {
  const auto rank = [](const L* lane) {
    const Turn& turn = lane->turn;
    return std::tuple(-std::int64_t{turn.priority}, turn.is_long, turn.tokens, turn.place);
  };
  const std::int64_t most = std::max<std::int64_t>(1, rows / kPatientShare);
  std::ranges::sort(lanes, {}, [&](const L* lane) {
    const bool patient = lane->turn.waited >= kPatience;
    return std::tuple(patient ? -lane->turn.waited : 0, rank(lane));
  });
  const auto others =
      std::ranges::find_if(lanes, [](const L* lane) { return lane->turn.waited < kPatience; });
  const auto first = lanes.begin() + std::min(most, others - lanes.begin());
  if (first != lanes.begin()) std::ranges::sort(first, lanes.end(), {}, rank);  // else they are
}

}  // namespace dendrite
