#pragma once

#include "engine/branches/engine_core.h"

namespace dendrite {

/// Does, for an engine that has its pages and is known to nobody yet, what its first prompt, steps,
/// fork and composition would wait for: passes whose first ones take longer
/// (Backend::first_passes), draws, a copy, tables of positions, the check of moves. Stores nothing
/// and counts nothing. What fails here is tried again, and told, by who needs it. (Not in debug
/// mode, where nobody reads what nobody wrote, nor for models with recurrent layers, whose passes
/// need states.)
void use_first(EngineCore& core);

}  // namespace dendrite
