#pragma once

#include <nlohmann/json_fwd.hpp>

#include "io/gguf_family.h"

// What single families say in GGUF files: GgufFamily::read. Each function adds to `config`, or
// changes there, what config.json of such a model says beside what all of them do.
namespace dendrite {

using GgufJson = nlohmann::ordered_json;

// gguf_config_dense.cpp
void gguf_llama(const GgufSource& source, GgufJson& config);  // Llama, Mistral, Mixtral
void gguf_mistral3(const GgufSource& source, GgufJson& config);
void gguf_phi3(const GgufSource& source, GgufJson& config);
/// Whether RoPE turns q and k, which a key of Granite's files says.
bool gguf_granite_rotates(const GgufSource& source);
/// What all of Granite's say; `rotated`: those whose attention has RoPE.
void gguf_granite_factors(const GgufSource& source, GgufJson& config);
void gguf_granite_rotated(const GgufSource& source, GgufJson& config);
void gguf_granite(const GgufSource& source, GgufJson& config);
void gguf_smollm3(const GgufSource& source, GgufJson& config);
void gguf_glm4(const GgufSource& source, GgufJson& config);
void gguf_seed_oss(const GgufSource& source, GgufJson& config);
void gguf_ernie4_5(const GgufSource& source, GgufJson& config);

// gguf_config_windows.cpp
void gguf_gemma2(const GgufSource& source, GgufJson& config);
void gguf_gemma3(const GgufSource& source, GgufJson& config);
void gguf_gemma4(const GgufSource& source, GgufJson& config);
void gguf_olmo2(const GgufSource& source, GgufJson& config);  // OLMo 2 and 3
void gguf_exaone4(const GgufSource& source, GgufJson& config);
void gguf_gpt_oss(const GgufSource& source, GgufJson& config);

// gguf_config_experts.cpp
void gguf_qwen3_moe(const GgufSource& source, GgufJson& config);
void gguf_llama4(const GgufSource& source, GgufJson& config);
void gguf_granite_moe(const GgufSource& source, GgufJson& config);
void gguf_glm4_moe(const GgufSource& source, GgufJson& config);
void gguf_hy_v3(const GgufSource& source, GgufJson& config);
void gguf_minimax_m2(const GgufSource& source, GgufJson& config);
void gguf_qwen3_next(const GgufSource& source, GgufJson& config);
void gguf_qwen3_5(const GgufSource& source, GgufJson& config);
void gguf_qwen3_5_moe(const GgufSource& source, GgufJson& config);
void gguf_lfm2(const GgufSource& source, GgufJson& config);
void gguf_lfm2_moe(const GgufSource& source, GgufJson& config);

// gguf_config_mamba.cpp
void gguf_granite_hybrid(const GgufSource& source, GgufJson& config);
void gguf_nemotron_h(const GgufSource& source, GgufJson& config);

/// Layers that have no router: "mlp_only_layers".
GgufJson layers_without_router(const GgufSource& source);

}  // namespace dendrite
