#include "model/config_hybrid.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "model/config_experts.h"
#include "model/config_rope.h"

namespace dendrite {
namespace {

constexpr IntRange kHeads{1, 4096};
constexpr IntRange kHeadDim{1, 1024};
constexpr IntRange kMtpLayers{0, 1024};
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

/// The type that the text's own config says: `type`, or the same with "_text" behind.
void check_type(const JsonObject& json, const std::string& type) {
  const auto got = json.find_string("model_type");
  if (got && *got != type && *got != type + "_text") {
    json.fail("model_type", "\"" + type + "_text\"");
  }
}

/// All but the MLP.
void read_layers_and_gates(const JsonObject& json, DecoderConfig& config) {
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
  config.mtp_layers = json.int_or("mtp_num_hidden_layers", 0, kMtpLayers);
  config.mtp_own_embedding = json.bool_or("mtp_use_dedicated_embeddings", false);
}

}  // namespace

void read_hybrid(const JsonObject& json, DecoderConfig& config) {
  check_type(json, "qwen3_5");
  for (const char* key : kExperts) {
    if (json.says(key)) json.fail(key, "none (a mixture of experts is of type \"qwen3_5_moe\")");
  }
  read_layers_and_gates(json, config);
}

void read_next(const JsonObject& json, DecoderConfig& config) {
  read_layers_and_gates(json, config);
  config.delta_net_by_key_head = true;
  read_next_experts(json, config);
}

void read_mixed_hybrid(const JsonObject& json, DecoderConfig& config) {
  check_type(json, "qwen3_5_moe");
  read_layers_and_gates(json, config);
  read_qwen3_5_experts(json, config);
}

}  // namespace dendrite
