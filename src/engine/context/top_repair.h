#pragma once

#include <span>

#include "engine/branches/composition.h"
#include "engine/branches/engine_core.h"

namespace dendrite {

/// Chooses what Repair::top is to compute of each piece (PlainPiece::top_groups): all tokens go
/// through the first two layers, as they are here and as they were moved, and of each piece those
/// groups are taken in which the sum of |dK|^2 / |K|^2 + |dV|^2 / |V|^2 of the second layer is
/// largest; of equal ones the first. Source: Yao et al. 2024, arXiv:2405.16444 (CacheBlend), by
/// single tokens there. It depends on the pieces alone, whatever else the engine holds. Waits for
/// the turn under way; nothing is done where no piece wants it. Throws Error where there is no
/// memory: 2 / layers of the K and V of all these tokens, and of what they are moved from.
/// `salt`: of the composition.
void choose_top(EngineCore& engine, std::span<PlainPiece> pieces, Salt salt)
    DENDRITE_EXCLUDES(kComputeLock, kTreeLock);

}  // namespace dendrite
