#include "backend/cpu/expert_choice.h"

#include <algorithm>
#include <vector>

namespace dendrite::cpu {
namespace {

/// The `chosen.size()` best of experts [begin, end) by what they rank by, best first, behind those
/// `count` that are there already: whoever comes later stands behind its equals. (NaN is better
/// than nothing, so there are always enough.)
template <class Rank>
std::size_t add_best(std::span<ExpertChoice> chosen, std::size_t count, std::int64_t begin,
                     std::int64_t end, Rank rank) {
  for (auto expert = static_cast<std::int32_t>(begin); expert < end; ++expert) {
    const float value = rank(expert);
    if (count == chosen.size() && !(value > chosen[count - 1].weight)) continue;
    std::size_t at = count < chosen.size() ? count++ : count - 1;
    for (; at > 0 && value > chosen[at - 1].weight; --at) chosen[at] = chosen[at - 1];
    chosen[at] = {expert, value};
  }
  return count;
}

}  // namespace

void choose_experts(std::span<const float> scores, const Routing& routing, const float* correction,
                    const float* factors, ExpertChoice* out) {
  const std::span chosen(out, static_cast<std::size_t>(routing.chosen));
  const auto rank = [&](std::int32_t expert) {
    const float score = scores[static_cast<std::size_t>(expert)];
    return correction == nullptr ? score : score + correction[expert];
  };
  const std::int64_t of_group = routing.experts / routing.groups;
  if (routing.chosen_groups == routing.groups) {
    add_best(chosen, 0, 0, routing.experts, rank);
  } else {
    std::vector<ExpertChoice> groups(static_cast<std::size_t>(routing.chosen_groups));
    const auto group_rank = [&](std::int32_t group) {
      ExpertChoice best[2] = {{}, {0, 0.0F}};
      const auto two =
          std::span(best).first(static_cast<std::size_t>(std::min<std::int64_t>(2, of_group)));
      add_best(two, 0, group * of_group, (group + 1) * of_group, rank);
      return best[0].weight + best[1].weight;
    };
    add_best(groups, 0, 0, routing.groups, group_rank);
    std::ranges::sort(groups, {}, &ExpertChoice::expert);
    std::size_t count = 0;
    for (const ExpertChoice& group : groups) {
      count = add_best(chosen, count, group.expert * of_group, (group.expert + 1) * of_group, rank);
    }
  }
  std::ranges::sort(chosen, {}, &ExpertChoice::expert);
  for (ExpertChoice& choice : chosen) {
    choice.weight = scores[static_cast<std::size_t>(choice.expert)];
  }
  if (routing.normalised) {
    float sum = 0;
    for (const ExpertChoice& choice : chosen) sum += choice.weight;
    sum += routing.sum_bias;
    for (ExpertChoice& choice : chosen) choice.weight /= sum;
  }
  for (ExpertChoice& choice : chosen) {
    choice.weight *= routing.scale;
    if (factors != nullptr) choice.weight *= factors[choice.expert];
  }
  if (routing.shared != SharedExpert::kNone) {
    const bool gated = routing.shared == SharedExpert::kGated;
    out[routing.chosen] = {static_cast<std::int32_t>(routing.experts), gated ? scores.back() : 1};
  }
}

}  // namespace dendrite::cpu
