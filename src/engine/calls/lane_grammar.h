#pragma once

#include <span>

#include "engine/branches/draft_provider.h"
#include "engine/branches/session_core.h"
#include "engine/calls/lane.h"

namespace dendrite {

/// What constraints have to do in a turn, for lanes of any calls: by as many threads as they have
/// families of matchers. Lanes without one are left alone; one whose grammar has no way on, or
/// comes to a limit, is a dead end from then on.

/// A draw after a drafted token, whose mask is made beside those of lanes. Without one it does not
/// count: the grammar came to a limit.
struct DraftDraw {
  Matcher* matcher = nullptr;
  Draw* draw = nullptr;
  MaskRef mask;
};

/// Before the draws: masks, for lanes that lack them, and for drafts.
void prepare_masks(EngineCore& engine, std::span<Lane* const> lanes,
                   std::span<DraftDraw* const> drafts = {});
/// What was drafted for lanes under constraints: nodes that are refused go, with what is after
/// them; those that must follow a last node come, as far as the draft's limit goes.
void follow_grammars(EngineCore& engine, std::span<LaneDraft* const> drafts);
/// After them: the matchers take the lanes' tokens. `force`: and those that must follow them, where
/// these take no step.
void advance_matchers(EngineCore& engine, std::span<Lane* const> lanes, bool force);
/// Where the lane is in its grammar: before the tokens that are forced.
Matcher matcher_of(const Lane& lane);
/// Of a lane that its last token stopped, by a stop string or as a stop token: whether its text may
/// end there, and without the stop string, too. True where there is no constraint.
bool may_end_at_stop(const Lane& lane);

}  // namespace dendrite
