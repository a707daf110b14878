#pragma once

#include <string>

#include "io/json_file.h"
#include "model/config.h"

// Configs of models some of whose layers are gated delta networks.
namespace dendrite {

/// What Qwen3.5's text models have beside the sizes that all have. Throws Error naming the key.
void read_hybrid(const JsonObject& json, DecoderConfig& config);

/// Throws Error where this is a model type of such models with a mixture of experts.
void refuse_experts(const JsonObject& json, const std::string& model_type);

}  // namespace dendrite
