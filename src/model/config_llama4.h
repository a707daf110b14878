#pragma once

#include "io/json_file.h"
#include "model/config.h"

namespace dendrite {

/// What Llama 4's text models have beside the sizes that all have: layers with RoPE that see chunks
/// of positions, layers without, whose queries grow, and mixtures. Throws Error naming the key.
void read_llama4(const JsonObject& json, DecoderConfig& config);

}  // namespace dendrite
