#include "backend/cpu/expert_choice.h"

#include <algorithm>

namespace dendrite::cpu {

void choose_experts(std::span<const float> weights, const Routing& routing, ExpertChoice* out) {
  const std::span chosen(out, static_cast<std::size_t>(routing.chosen));
  // The best so far, best first: whoever comes later stands behind its equals. (NaN is better than
  // nothing, so there are always enough.)
  std::size_t count = 0;
  for (std::int32_t expert = 0; expert < routing.experts; ++expert) {
    const float weight = weights[static_cast<std::size_t>(expert)];
    if (count == chosen.size() && !(weight > chosen[count - 1].weight)) continue;
    std::size_t at = count < chosen.size() ? count++ : count - 1;
    for (; at > 0 && weight > chosen[at - 1].weight; --at) chosen[at] = chosen[at - 1];
    chosen[at] = {expert, weight};
  }
  std::ranges::sort(chosen, {}, &ExpertChoice::expert);
  if (routing.normalised) {
    float sum = 0;
    for (const ExpertChoice& choice : chosen) sum += choice.weight;
    for (ExpertChoice& choice : chosen) choice.weight /= sum;
  }
  if (routing.shared != SharedExpert::kNone) {
    const bool gated = routing.shared == SharedExpert::kGated;
    out[routing.chosen] = {static_cast<std::int32_t>(routing.experts), gated ? weights.back() : 1};
  }
}

}  // namespace dendrite::cpu
