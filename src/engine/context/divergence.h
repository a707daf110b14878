#pragma once

#include <functional>
#include <span>
#include <vector>

#include "dendrite/session.h"
#include "engine/branches/session_core.h"

namespace dendrite {

/// KL(right || of) of two next-token distributions in nats, computed in double; logits [vocab]
/// each.
double divergence_at(std::span<const float> right, std::span<const float> of);

/// How far distributions are from those that are taken for right, pairwise: logits [vocab] each.
Estimate divergence(std::span<const Distribution> right, std::span<const Distribution> of,
                    Estimate::Kind kind);

/// Composes with k first tokens repaired and with 2 k, whose branch this is; while the two differ
/// by more than `target_kl` allows, with twice as many, and beyond 64 exactly.
Composed compose_within(SessionCore& session, const ComposeParams& params,
                        const std::function<Composed(const ComposeParams&)>& compose);

}  // namespace dendrite
