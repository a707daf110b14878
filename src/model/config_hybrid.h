#pragma once

#include "io/json_file.h"
#include "model/config.h"

// Configs of models some of whose layers are gated delta networks.
namespace dendrite {

/// What Qwen3.5's text models have beside the sizes that all have. Throws Error naming the key.
void read_hybrid(const JsonObject& json, DecoderConfig& config);

/// The same of Qwen3-Next, whose MLPs are mixtures of experts.
void read_next(const JsonObject& json, DecoderConfig& config);

/// The same of Qwen3.5's mixtures of experts.
void read_mixed_hybrid(const JsonObject& json, DecoderConfig& config);

/// The same of Kimi-Linear: Kimi Delta Attention, and attention through a latent without RoPE.
void read_kimi_linear(const JsonObject& json, DecoderConfig& config);

}  // namespace dendrite
