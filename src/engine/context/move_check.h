#pragma once

#include <optional>
#include <string>

#include "engine/branches/engine_core.h"

namespace dendrite {

/// In the first layer K and V depend on token and position alone, so whatever a model does with
/// positions shows there. Tokens are computed at position 0 and behind 17 others, and moved from
/// there to here. "": V is the same to the bit and K up to 4e-3 (bf16; f32: 1e-6) of its size,
/// root mean square. Else what is wrong. Nothing: there is no memory to see that now. The model
/// must be free.
std::optional<std::string> problem_of_moves(Backend& backend, Model& model, const ModelInfo& info,
                                            const KvShape& like);

/// Before the first composition: that moving K and V of this model gives what it is to give.
/// Throws Error where it does not. `what`: the caller's call. Waits for a step.
void check_moves(EngineCore& engine, const char* what) DENDRITE_EXCLUDES(kComputeLock, kTreeLock);

}  // namespace dendrite
