#pragma once

#include "io/json_file.h"
#include "model/config.h"

// What families without mixtures and recurrent layers have beside the sizes that all have. All
// throw Error naming the key.
namespace dendrite {

void read_llama(const JsonObject& json, DecoderConfig& config);
void read_mistral(const JsonObject& json, DecoderConfig& config);
void read_ministral3(const JsonObject& json, DecoderConfig& config);
void read_qwen2(const JsonObject& json, DecoderConfig& config);
void read_qwen3(const JsonObject& json, DecoderConfig& config);
void read_smollm3(const JsonObject& json, DecoderConfig& config);
void read_seed_oss(const JsonObject& json, DecoderConfig& config);
void read_granite(const JsonObject& json, DecoderConfig& config);
void read_phi3(const JsonObject& json, DecoderConfig& config);
void read_glm4(const JsonObject& json, DecoderConfig& config);
void read_ernie4_5(const JsonObject& json, DecoderConfig& config);
void read_olmo2(const JsonObject& json, DecoderConfig& config);
void read_olmo3(const JsonObject& json, DecoderConfig& config);
void read_exaone4(const JsonObject& json, DecoderConfig& config);
void read_gemma2(const JsonObject& json, DecoderConfig& config);
void read_gemma3(const JsonObject& json, DecoderConfig& config);

}  // namespace dendrite
