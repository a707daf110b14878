#pragma once

#include "io/json_file.h"
#include "model/config.h"

// Configs of models some of whose layers are Mamba-2.
namespace dendrite {

/// What Granite 4's hybrids have beside the sizes that all have: dense ones and mixtures. Throws
/// Error naming the key.
void read_granite_hybrid(const JsonObject& json, DecoderConfig& config);

/// The same of Nemotron-H, whose layers have a mixer or an MLP.
void read_nemotron_h(const JsonObject& json, DecoderConfig& config);

}  // namespace dendrite
