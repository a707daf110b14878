#pragma once

#include "io/json_file.h"
#include "model/config.h"

// What families with attention through a latent have beside the sizes that all have. All throw
// Error naming the key.
namespace dendrite {

/// What a latent and its softmax are; `missing`: sizes that a file does not say. `theta`: of RoPE,
/// the same.
void read_latent(const JsonObject& json, const LatentSizes& missing, double theta,
                 DecoderConfig& config);

void read_deepseek_v2(const JsonObject& json, DecoderConfig& config);
void read_deepseek_v3(const JsonObject& json, DecoderConfig& config);
void read_glm4_moe_lite(const JsonObject& json, DecoderConfig& config);
void read_mistral4(const JsonObject& json, DecoderConfig& config);

}  // namespace dendrite
