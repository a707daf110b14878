#pragma once

#include <span>

#include "engine/lane.h"
#include "engine/session_core.h"

namespace dendrite {

/// What constraints have to do in a turn, for lanes of any calls: by as many threads as they have
/// families of matchers. Lanes without one are left alone; one whose grammar has no way on, or
/// comes to a limit, is a dead end from then on.

/// Before the draws: masks, for lanes that lack them.
void prepare_masks(EngineCore& engine, std::span<Lane* const> lanes);
/// After them: the matchers take the lanes' tokens. `force`: and those that must follow them, where
/// these take no step.
void advance_matchers(EngineCore& engine, std::span<Lane* const> lanes, bool force);
/// Where the lane is in its grammar: before the tokens that are forced.
Matcher matcher_of(const Lane& lane);

}  // namespace dendrite
