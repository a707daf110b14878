#pragma once

#include "io/json_file.h"
#include "model/config.h"

// Configs of models some of whose layers are short convolutions.
namespace dendrite {

/// What LFM2 has beside the sizes that all have. Throws Error naming the key.
void read_lfm2(const JsonObject& json, DecoderConfig& config);

/// The same of its mixtures of experts.
void read_lfm2_moe(const JsonObject& json, DecoderConfig& config);

/// The same of LFM3.
void read_lfm3(const JsonObject& json, DecoderConfig& config);

}  // namespace dendrite
