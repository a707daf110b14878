#pragma once

#include "io/json_file.h"
#include "model/config.h"

// Configs of models some of whose layers are mixtures of experts. All throw Error naming the key.
namespace dendrite {

/// What Qwen3's mixtures have beside what Qwen3 has.
void read_qwen3_experts(const JsonObject& json, DecoderConfig& config);

/// The same of Mixtral and Mistral.
void read_mixtral_experts(const JsonObject& json, DecoderConfig& config);

/// The same of Qwen3-Next: those that are mixtures have a shared expert.
void read_next_experts(const JsonObject& json, DecoderConfig& config);

/// The same of Qwen3.5: all layers are mixtures, and have a shared expert.
void read_qwen3_5_experts(const JsonObject& json, DecoderConfig& config);

}  // namespace dendrite
