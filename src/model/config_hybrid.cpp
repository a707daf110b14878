#include "model/config_hybrid.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "model/config_rope.h"

namespace dendrite {
namespace {

constexpr IntRange kHeads{1, 4096};
constexpr IntRange kHeadDim{1, 1024};
constexpr IntRange kTaps{2, 16};       // what a state keeps of them lies in the chunk before it
constexpr double kMissingPart = 0.25;  // of a head that RoPE rotates

constexpr const char* kExperts[] = {"num_experts", "num_experts_per_tok", "moe_intermediate_size",
                                    "shared_expert_intermediate_size"};

/// Which layers are delta networks: "layer_types" says it, else all but every so many-th.
std::vector<bool> read_layers(const JsonObject& json, std::int64_t layers) {
  std::vector<bool> recurrent;
  const char* key = "layer_types";
  if (const auto types = json.find_strings(key)) {
    if (std::ssize(*types) != layers) {
      json.fail(key, "one for each of num_hidden_layers, " + std::to_string(layers));
    }
    for (const std::string& type : *types) {
      if (type != "linear_attention" && type != "full_attention") {
        json.fail(key, "\"linear_attention\" or \"full_attention\" in each place (" +
                           in_quotes(type) + " is not supported)");
      }
      recurrent.push_back(type == "linear_attention");
    }
  } else {
    key = "full_attention_interval";
    const std::int64_t interval = json.int_or(key, 4, {1, 1 << 20});
    for (std::int64_t i = 0; i < layers; ++i) recurrent.push_back((i + 1) % interval != 0);
  }
  if (std::ranges::count(recurrent, false) == 0) {
    json.fail(key, "one that leaves a layer of full attention among " + std::to_string(layers) +
                       " (models without any are not supported)");
  }
  return recurrent;
}

DeltaNetSizes read_sizes(const JsonObject& json) {
  DeltaNetSizes sizes;
  sizes.key_heads = json.int_or("linear_num_key_heads", 16, kHeads);
  sizes.value_heads = json.int_or("linear_num_value_heads", 32, kHeads);
  if (sizes.value_heads % sizes.key_heads != 0) {
    json.fail("linear_num_value_heads",
              "a multiple of linear_num_key_heads, " + std::to_string(sizes.key_heads));
  }
  sizes.key_dim = json.int_or("linear_key_head_dim", 128, kHeadDim);
  sizes.value_dim = json.int_or("linear_value_head_dim", 128, kHeadDim);
  sizes.taps = json.int_or("linear_conv_kernel_dim", 4, kTaps);
  return sizes;
}

}  // namespace

void refuse_experts(const JsonObject& json, const std::string& model_type) {
  for (const char* type : {"qwen3_5_moe", "qwen3_5_moe_text", "qwen3_next"}) {
    if (model_type != type) continue;
    json.fail("model_type", "one of " + supported_model_types() +
                                " (mixtures of experts, num_experts, are not supported)");
  }
}

void read_hybrid(const JsonObject& json, DecoderConfig& config) {
  const auto type = json.find_string("model_type");
  if (type && *type != "qwen3_5_text" && *type != "qwen3_5") {
    refuse_experts(json, *type);
    json.fail("model_type", "\"qwen3_5_text\"");
  }
  for (const char* key : kExperts) {
    if (json.says(key)) json.fail(key, "none (mixtures of experts are not supported)");
  }
  if (!json.bool_or("attn_output_gate", true)) {
    json.fail("attn_output_gate", "true (attention without gates is not supported here)");
  }
  const std::string gate = json.find_string("output_gate_type").value_or("swish");
  if (gate != "swish" && gate != "silu") {
    json.fail("output_gate_type", "\"swish\" (other gates are not supported)");
  }
  config.attention_bias = config.attention_out_bias = json.bool_or("attention_bias", false);
  config.qk_norm = config.attention_gate = config.zero_centred_norms = true;
  config.recurrent = read_layers(json, config.layers);
  config.delta_net = read_sizes(json);
  config.rotary_dim = read_rotary_dim(json, config.head_dim, kMissingPart);
}

}  // namespace dendrite
