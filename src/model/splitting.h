#pragma once

#include "model/config.h"

namespace dendrite {

/// Throws Error saying what of a model so many devices do not share (Backend::ranks).
void check_split(const DecoderConfig& config, int ranks);

}  // namespace dendrite
