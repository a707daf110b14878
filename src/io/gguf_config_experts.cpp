// Families with mixtures of experts or with recurrent layers.
#include <nlohmann/json.hpp>
#include <utility>

#include "io/gguf_readers.h"

namespace dendrite {
namespace {

using Json = GgufJson;

constexpr const char* kGating = "expert_gating_func";
constexpr const char* kShared = "expert_shared_feed_forward_length";

/// `key`: what config.json calls their number.
void add_experts(const GgufSource& source, const char* key, Json& config) {
  config[key] = source.keys.require_int("expert_count");
  config["num_experts_per_tok"] = source.keys.require_int("expert_used_count");
  config["moe_intermediate_size"] = source.keys.require_int("expert_feed_forward_length");
}

/// Which 2 means, and a file of such a family that says nothing.
void require_sigmoid(const GgufSource& source) {
  if (source.keys.find_int(kGating).value_or(2) != 2) {
    source.keys.fail(kGating, "2, sigmoids (others are not supported here)");
  }
}

void add_delta_net(const GgufSource& source, Json& config) {
  const GgufKeys& keys = source.keys;
  const std::int64_t heads = keys.require_int("ssm.time_step_rank");
  const std::int64_t width = keys.require_int("ssm.inner_size");
  if (heads < 1 || width % heads != 0) {
    keys.fail("ssm.inner_size", "a multiple of ssm.time_step_rank, the value heads");
  }
  config["linear_num_key_heads"] = keys.require_int("ssm.group_count");
  config["linear_num_value_heads"] = heads;
  config["linear_key_head_dim"] = keys.require_int("ssm.state_size");
  config["linear_value_head_dim"] = width / heads;
  config["linear_conv_kernel_dim"] = keys.require_int("ssm.conv_kernel");
  const auto interval = keys.find_int("full_attention_interval");
  if (const auto recurrent = keys.find_flags("attention.recurrent_layers", source.layers)) {
    Json types = Json::array();
    for (const bool is : *recurrent) types.push_back(is ? "linear_attention" : "full_attention");
    config["layer_types"] = std::move(types);
  } else if (interval) {
    config["full_attention_interval"] = *interval;
  }
  keys.skip("rope.dimension_sections");  // positions of texts are one number each
}

void add_shared_expert(const GgufSource& source, Json& config) {
  config["shared_expert_intermediate_size"] = source.keys.require_int(kShared);
}

}  // namespace

Json layers_without_router(const GgufSource& source) {
  Json dense = Json::array();
  for (std::int64_t i = 0; i < source.layers; ++i) {
    if (!source.has(i, "ffn_gate_inp.weight")) dense.push_back(i);
  }
  return dense;
}

/// Weights of the chosen are always divided by their sum.
void gguf_qwen3_moe(const GgufSource& source, Json& config) {
  add_experts(source, "num_experts", config);
  config["norm_topk_prob"] = true;
  config["mlp_only_layers"] = layers_without_router(source);
}

/// Of chunks, of layers without RoPE and of how their queries grow nothing is said, which all
/// models have alike; nor of the norm of q and k, which the one with 128 experts goes without.
void gguf_llama4(const GgufSource& source, Json& config) {
  constexpr std::int64_t kChunk = 8192;
  constexpr std::int64_t kExpertsOfMaverick = 128;
  const GgufKeys& keys = source.keys;
  require_sigmoid(source);
  add_experts(source, "num_local_experts", config);
  if (config.contains("intermediate_size")) {
    config["intermediate_size_mlp"] = config["intermediate_size"];
  }
  config["intermediate_size"] = config["moe_intermediate_size"];
  const char* const kStep = "interleave_moe_layer_step";
  config[kStep] = keys.require_int(kStep);
  if (config[kStep] == 0) keys.fail(kStep, "1 or more, since there are experts");
  const char* const kWindow = "attention.sliding_window";  // 0: no chunks, and RoPE in all layers
  if (keys.find_int(kWindow).value_or(kChunk) != kChunk) {
    keys.fail(kWindow, std::to_string(kChunk) + " or none (others are not supported here)");
  }
  config["attention_chunk_size"] = kChunk;
  config["no_rope_layer_interval"] = 4;
  config["attn_temperature_tuning"] = true;
  config["attn_scale"] = 0.1;
  config["floor_scale"] = 8192;
  config["use_qk_norm"] = config["num_local_experts"] != kExpertsOfMaverick;
}

/// Whose experts are as wide as "feed_forward_length" says.
void gguf_granite_moe(const GgufSource& source, Json& config) {
  gguf_granite_rotated(source, config);
  config["intermediate_size"] = source.keys.require_of_layers("feed_forward_length");
  config["num_local_experts"] = source.keys.require_int("expert_count");
  config["num_experts_per_tok"] = source.keys.require_int("expert_used_count");
}

void gguf_glm4_moe(const GgufSource& source, Json& config) {
  gguf_glm4(source, config);
  require_sigmoid(source);
  add_experts(source, "n_routed_experts", config);
  const GgufKeys& keys = source.keys;
  config["n_shared_experts"] = keys.require_int("expert_shared_count");
  config["first_k_dense_replace"] = keys.find_int("leading_dense_block_count").value_or(0);
  config["routed_scaling_factor"] = keys.find_number("expert_weights_scale").value_or(1);
  config["norm_topk_prob"] = keys.find_bool("expert_weights_norm").value_or(false);
  config["n_group"] = keys.find_int("expert_group_count").value_or(1);
  config["topk_group"] = keys.find_int("expert_group_used_count").value_or(1);
  config["use_qk_norm"] = source.any_ends_with(".attn_q_norm.weight");
}

void gguf_hy_v3(const GgufSource& source, Json& config) {
  require_sigmoid(source);
  add_experts(source, "num_experts", config);
  const GgufKeys& keys = source.keys;
  const std::int64_t width = config["moe_intermediate_size"].get<std::int64_t>();
  const std::int64_t shared = keys.find_int(kShared).value_or(width);
  if (width < 1 || shared % width != 0) {
    keys.fail(kShared, "a multiple of expert_feed_forward_length");
  }
  config["num_shared_experts"] = shared / width;
  config["router_scaling_factor"] = keys.find_number("expert_weights_scale").value_or(1);
  if (keys.find_bool("expert_weights_norm") != true) {
    keys.fail("expert_weights_norm", "true (it is not supported otherwise)");
  }
  Json types = Json::array();
  for (std::int64_t i = 0; i < source.layers; ++i) {
    types.push_back(source.has(i, "ffn_gate_inp.weight") ? "sparse" : "dense");
  }
  config["mlp_layer_types"] = std::move(types);
}

void gguf_minimax_m2(const GgufSource& source, Json& config) {
  require_sigmoid(source);
  add_experts(source, "num_local_experts", config);
  config["intermediate_size"] = config["moe_intermediate_size"];
}

void gguf_qwen3_next(const GgufSource& source, Json& config) {
  add_delta_net(source, config);
  gguf_qwen3_moe(source, config);
  add_shared_expert(source, config);
}

void gguf_lfm2(const GgufSource& source, Json& config) {
  config["conv_L_cache"] = source.keys.require_int("shortconv.l_cache");
  config["conv_bias"] = source.any_ends_with(".shortconv.in_proj.bias");
  config["block_auto_adjust_ff_dim"] = false;  // the width is what it comes to
  Json types = Json::array();
  for (std::int64_t i = 0; i < source.layers; ++i) {
    types.push_back(source.has(i, "shortconv.conv.weight") ? "conv" : "full_attention");
  }
  config["layer_types"] = std::move(types);
}

void gguf_lfm2_moe(const GgufSource& source, Json& config) {
  gguf_lfm2(source, config);
  require_sigmoid(source);
  add_experts(source, "num_experts", config);
  const GgufKeys& keys = source.keys;
  config["num_dense_layers"] = keys.find_int("leading_dense_block_count").value_or(0);
  config["routed_scaling_factor"] = keys.find_number("expert_weights_scale").value_or(1);
  config["norm_topk_prob"] = keys.find_bool("expert_weights_norm").value_or(true);
  config["use_expert_bias"] = source.any_ends_with(".exp_probs_b.bias");
}

void gguf_qwen3_5(const GgufSource& source, Json& config) {
  add_delta_net(source, config);
}

void gguf_qwen3_5_moe(const GgufSource& source, Json& config) {
  add_delta_net(source, config);
  add_experts(source, "num_experts", config);
  add_shared_expert(source, config);
}

}  // namespace dendrite
