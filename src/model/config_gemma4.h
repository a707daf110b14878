#pragma once

#include "io/json_file.h"
#include "model/config.h"

// What Gemma 4 has beside the sizes that all families have. Throw Error naming the key.
namespace dendrite {

void read_gemma4(const JsonObject& json, DecoderConfig& config);
/// The one that has no inputs of layers and no mixtures: the 12B.
void read_gemma4_unified(const JsonObject& json, DecoderConfig& config);

}  // namespace dendrite
