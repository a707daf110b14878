#pragma once

#include <span>

#include "backend/ops.h"

namespace dendrite::cpu {

/// What a row takes by the scores [routing.logits()] that all have, see Backend::choose_experts;
/// correction and factors [routing.experts] or null; out [routing.choices()].
void choose_experts(std::span<const float> scores, const Routing& routing, const float* correction,
                    const float* factors, ExpertChoice* out);

}  // namespace dendrite::cpu
