#include "model/config_hybrid.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <utility>

#include "model/config_experts.h"
#include "model/config_latent.h"
#include "model/config_rope.h"

namespace dendrite {
namespace {

constexpr IntRange kHeads{1, 4096};
constexpr IntRange kHeadDim{1, 1024};
constexpr IntRange kMtpLayers{0, 1024};
constexpr IntRange kPositions{1, std::int64_t{1} << 30};
constexpr IntRange kTaps{2, 16};       // what a state keeps of them lies in the chunk before it
constexpr double kMissingPart = 0.25;  // of a head that RoPE rotates

constexpr const char* kExperts[] = {"num_experts", "num_experts_per_tok", "moe_intermediate_size",
                                    "shared_expert_intermediate_size"};

constexpr const char* kLayerTypes = "layer_types";

/// Which layers are delta networks, by "layer_types"; none: it is not there.
std::optional<std::vector<bool>> read_layer_types(const JsonObject& json, std::int64_t layers) {
  const auto types = json.find_strings(kLayerTypes);
  if (!types) return std::nullopt;
  if (std::ssize(*types) != layers) {
    json.fail(kLayerTypes, "one for each of num_hidden_layers, " + std::to_string(layers));
  }
  std::vector<bool> recurrent;
  for (const std::string& type : *types) {
    if (type != "linear_attention" && type != "full_attention") {
      json.fail(kLayerTypes, "\"linear_attention\" or \"full_attention\" in each place (" +
                                 in_quotes(type) + " is not supported)");
    }
    recurrent.push_back(type == "linear_attention");
  }
  return recurrent;
}

void check_has_attention(const JsonObject& json, const char* key,
                         const std::vector<bool>& recurrent) {
  if (std::ranges::count(recurrent, false) > 0) return;
  json.fail(key, "one that leaves a layer of full attention among " +
                     std::to_string(recurrent.size()) + " (models without any are not supported)");
}

/// Which layers are delta networks: "layer_types" says it, else all but every so many-th.
std::vector<bool> read_layers(const JsonObject& json, std::int64_t layers) {
  const char* key = kLayerTypes;
  auto recurrent = read_layer_types(json, layers);
  if (!recurrent) {
    key = "full_attention_interval";
    recurrent.emplace();
    const std::int64_t interval = json.int_or(key, 4, {1, 1 << 20});
    for (std::int64_t i = 0; i < layers; ++i) recurrent->push_back((i + 1) % interval != 0);
  }
  check_has_attention(json, key, *recurrent);
  return *recurrent;
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

/// Kimi's, of two lists of layers by numbers from 1 on.
std::vector<bool> read_kimi_lists(const JsonObject& lists, std::int64_t layers) {
  constexpr const char* kFull = "full_attn_layers";
  constexpr const char* kRecurrent = "kda_layers";
  std::vector<int> kinds(static_cast<std::size_t>(layers), 0);
  for (const char* key : {kFull, kRecurrent}) {
    const auto numbers = lists.find_ints(key, {1, layers});
    for (const std::int64_t layer : numbers.value_or(std::vector<std::int64_t>{})) {
      int& kind = kinds[static_cast<std::size_t>(layer - 1)];
      if (kind != 0)
        lists.fail(key, "each layer once (" + std::to_string(layer) + " is there twice)");
      kind = key == kFull ? 1 : 2;
    }
  }
  const auto missing = std::ranges::find(kinds, 0);
  if (missing != kinds.end()) {
    lists.fail(kRecurrent, "with full_attn_layers each layer from 1 to " + std::to_string(layers) +
                               " (" + std::to_string(missing - kinds.begin() + 1) + " is missing)");
  }
  std::vector<bool> recurrent;
  for (const int kind : kinds) recurrent.push_back(kind == 2);
  check_has_attention(lists, kFull, recurrent);
  return recurrent;
}

/// Kimi's layers: "layer_types", else the lists, else all but every fourth from the fifth on.
std::vector<bool> read_kimi_layers(const JsonObject& json, const std::optional<JsonObject>& lists,
                                   std::int64_t layers) {
  auto recurrent = read_layer_types(json, layers);
  if (!recurrent && lists && (lists->has("kda_layers") || lists->has("full_attn_layers"))) {
    return read_kimi_lists(*lists, layers);
  }
  if (!recurrent) {
    recurrent.emplace();
    for (std::int64_t i = 0; i < layers; ++i) recurrent->push_back(i == 0 || i % 4 != 0);
  }
  check_has_attention(json, kLayerTypes, *recurrent);
  return *recurrent;
}

/// Where the lists are, or as transformers names them.
DeltaNetSizes read_kimi_sizes(const JsonObject& json, const std::optional<JsonObject>& lists) {
  const auto read = [&](const char* key, const char* own, std::int64_t usual, IntRange range) {
    const std::int64_t size = json.int_or(own, usual, range);
    return lists ? lists->int_or(key, size, range) : size;
  };
  DeltaNetSizes sizes;
  sizes.by_channel = true;
  sizes.key_heads = sizes.value_heads = read("num_heads", "linear_num_heads", 32, kHeads);
  sizes.key_dim = sizes.value_dim = read("head_dim", "linear_head_dim", 128, kHeadDim);
  sizes.taps = read("short_conv_kernel_size", "linear_conv_kernel_dim", 4, kTaps);
  return sizes;
}

void refuse_other_kimi(const JsonObject& json) {
  const std::string scores = json.find_string("moe_router_activation_func").value_or("sigmoid");
  if (scores != "sigmoid") {
    json.fail("moe_router_activation_func", "\"sigmoid\" (other scores are not supported here)");
  }
  if (!json.find_bool("mla_use_nope").value_or(true)) {
    json.fail("mla_use_nope", "true (attention with RoPE is not supported here)");
  }
  if (json.int_or("moe_layer_freq", 1, {1, 1 << 20}) != 1) {
    json.fail("moe_layer_freq", "1 (mixtures in every so many-th layer are not supported here)");
  }
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

void read_kimi_linear(const JsonObject& json, DecoderConfig& config) {
  refuse_other_kimi(json);
  config.max_positions = json.int_or("model_max_length", config.max_positions, kPositions);
  read_latent(json, {512, 0, 128, 64, 128}, 10000, config);
  config.rope_pairs = false;
  config.unrotated.assign(static_cast<std::size_t>(config.layers), true);
  const auto lists = json.find_object("linear_attn_config");
  std::vector<bool> recurrent = read_kimi_layers(json, lists, config.layers);
  if (std::ranges::count(recurrent, true) > 0) {
    config.recurrent = std::move(recurrent);
    config.delta_net = read_kimi_sizes(json, lists);
  }
  read_kimi_experts(json, config);
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
