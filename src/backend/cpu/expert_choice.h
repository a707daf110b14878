#pragma once

#include <span>

#include "backend/ops.h"

namespace dendrite::cpu {

/// What a row takes by the weights [routing.logits()] that all have, see Backend::choose_experts;
/// out [routing.choices()].
void choose_experts(std::span<const float> weights, const Routing& routing, ExpertChoice* out);

}  // namespace dendrite::cpu
