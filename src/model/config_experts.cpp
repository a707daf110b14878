#include "model/config_experts.h"

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "model/config_dense.h"
#include "model/config_rope.h"
#include "model/config_windows.h"

namespace dendrite {
namespace {

constexpr IntRange kExperts{1, 4096};
constexpr IntRange kWidth{1, 1 << 20};
constexpr IntRange kShared{0, 64};
constexpr NumberRange kScale{1e-6, 1e6};

/// The key that says how many there are: `usual`, but files of transformers 5 may have the other.
const char* key_of_count(const JsonObject& json, const char* usual, const char* other) {
  return json.has(other) && !json.has(usual) ? other : usual;
}

Routing read_routing(const JsonObject& json, const char* key, std::int64_t experts,
                     std::int64_t chosen, const char* chosen_key = "num_experts_per_tok") {
  Routing routing;
  routing.experts = json.int_or(key, experts, kExperts);
  routing.chosen = json.int_or(chosen_key, chosen, kExperts);
  if (routing.chosen > routing.experts) {
    json.fail(chosen_key, "at most " + std::string(key) + ", " + std::to_string(routing.experts));
  }
  return routing;
}

/// Groups that experts are chosen from: "n_group", "topk_group"; null: one.
void read_groups(const JsonObject& json, const RoutedDefaults& missing, Routing& routing) {
  const auto read = [&](const char* key, std::int64_t usual) {
    return json.contains(key) ? json.find_int(key, kExperts).value_or(1) : usual;
  };
  const char* const key = missing.keys.groups;
  routing.groups = read(key, missing.groups);
  routing.chosen_groups = read("topk_group", missing.chosen_groups);
  if (routing.experts % routing.groups != 0) {
    json.fail(key, "a divisor of the number of experts, " + std::to_string(routing.experts));
  }
  const std::int64_t of_group = routing.experts / routing.groups;
  if (routing.chosen_groups > routing.groups || routing.chosen > routing.chosen_groups * of_group) {
    json.fail("topk_group", "at most " + std::string(key) + ", and as many as hold the " +
                                std::to_string(routing.chosen) + " experts of a token");
  }
}

/// Layers are mixtures as "mlp_layer_types" says, else all but the first `dense`.
std::vector<bool> read_mlp_types(const JsonObject& json, std::int64_t layers, std::int64_t dense) {
  const char* const key = "mlp_layer_types";
  const auto types = json.find_strings(key);
  if (types && std::ssize(*types) != layers) {
    json.fail(key, "one for each of num_hidden_layers, " + std::to_string(layers));
  }
  std::vector<bool> mixed;
  for (std::int64_t i = 0; i < layers; ++i) {
    if (!types) {
      mixed.push_back(i >= dense);
      continue;
    }
    const std::string& type = (*types)[static_cast<std::size_t>(i)];
    if (type != "sparse" && type != "dense") {
      json.fail(key,
                "\"dense\" or \"sparse\" in each place (" + in_quotes(type) + " is not supported)");
    }
    mixed.push_back(type == "sparse");
  }
  return mixed;
}

/// Experts that every row takes, which are one as wide as all.
void add_shared(ExpertsSizes& sizes, std::int64_t count) {
  if (count == 0) return;
  sizes.routing.shared = SharedExpert::kPlain;
  sizes.shared_ffn_dim = count * sizes.ffn_dim;
}

/// Mixtral's names.
void name_by_numbers(ExpertNames& names) {
  names.block = "block_sparse_moe.";
  names.gate = "w1";
  names.up = "w3";
  names.down = "w2";
}

/// Of Qwen's models.
Routing read_routing(const JsonObject& json, std::int64_t experts, std::int64_t chosen) {
  return read_routing(json, key_of_count(json, "num_experts", "num_local_experts"), experts,
                      chosen);
}

/// With a shared expert.
ExpertsSizes read_with_shared(const JsonObject& json, std::int64_t experts, std::int64_t chosen) {
  ExpertsSizes sizes;
  sizes.routing = read_routing(json, experts, chosen);
  sizes.routing.shared = SharedExpert::kGated;
  sizes.ffn_dim = json.int_or("moe_intermediate_size", 512, kWidth);
  sizes.shared_ffn_dim = json.int_or("shared_expert_intermediate_size", 512, kWidth);
  return sizes;
}

/// Layers are mixtures but for those of "mlp_only_layers" and all but every so many-th.
std::vector<bool> read_mixed(const JsonObject& json, std::int64_t layers) {
  std::vector<bool> mixed;
  const std::int64_t step = json.int_or("decoder_sparse_step", 1, {1, 1 << 20});
  for (std::int64_t i = 0; i < layers; ++i) mixed.push_back((i + 1) % step == 0);
  const auto dense = json.find_ints("mlp_only_layers", {0, layers - 1});
  for (const std::int64_t layer : dense.value_or(std::vector<std::int64_t>{})) {
    mixed[static_cast<std::size_t>(layer)] = false;
  }
  return mixed;
}

std::vector<bool> all_of(const DecoderConfig& config) {
  return std::vector<bool>(static_cast<std::size_t>(config.layers), true);
}

void set_experts(const ExpertsSizes& sizes, std::vector<bool> mixed, DecoderConfig& config) {
  config.mixed = std::move(mixed);
  if (config.mixed_layers() > 0) config.experts = sizes;
  if (config.mixed_layers() == config.layers) config.ffn_dim = sizes.ffn_dim;
}

void read_granite_experts(const JsonObject& json, DecoderConfig& config) {
  ExpertsSizes sizes;
  sizes.routing = read_routing(json, "num_local_experts", 8, 2);
  sizes.routing.normalised = true;
  sizes.ffn_dim = config.ffn_dim;
  set_experts(sizes, all_of(config), config);
  name_by_numbers(config.expert_names);
  config.expert_names.router = "router.layer.weight";
  config.expert_names.fused_gate_up = "input_linear.weight";
  config.expert_names.fused_down = "output_linear.weight";
}

}  // namespace

void read_qwen3_moe(const JsonObject& json, DecoderConfig& config) {
  config.attention_bias = config.attention_out_bias = json.bool_or("attention_bias", false);
  config.qk_norm = true;
  set_window(json, json.bool_or("use_sliding_window", false) ? read_window(json) : 0, config);
  ExpertsSizes sizes;
  sizes.routing = read_routing(json, 128, 8);
  sizes.routing.normalised = json.bool_or("norm_topk_prob", false);
  sizes.ffn_dim = json.int_or("moe_intermediate_size", 768, kWidth);
  set_experts(sizes, read_mixed(json, config.layers), config);
}

void read_mixtral(const JsonObject& json, DecoderConfig& config) {
  set_window(json, read_window(json, 0), config);
  ExpertsSizes sizes;
  const char* const key = key_of_count(json, "num_local_experts", "num_experts");
  sizes.routing = read_routing(json, key, 8, 2);
  sizes.routing.normalised = true;
  sizes.ffn_dim = config.ffn_dim;
  set_experts(sizes, all_of(config), config);
  name_by_numbers(config.expert_names);
}

/// A softmax over the chosen alone is one over all, divided by the sum of the chosen.
void read_granitemoe(const JsonObject& json, DecoderConfig& config) {
  read_granite(json, config);
  read_granite_experts(json, config);
  config.experts->routing.scale = config.residual_scale;
}

void read_granite_hybrid_experts(const JsonObject& json, DecoderConfig& config) {
  if (json.int_or("num_local_experts", 8, {0, kExperts.max}) == 0) return;
  read_granite_experts(json, config);
  config.experts_beside = true;
}

void read_nemotron_experts(const JsonObject& json, std::vector<bool> mixed, DecoderConfig& config) {
  if (json.has("moe_latent_size")) {
    json.fail("moe_latent_size", "null (experts in a latent are not supported)");
  }
  if (config.mlp_bias) json.fail("mlp_bias", "false (biases of mixtures are not supported here)");
  ExpertsSizes sizes;
  Routing& routing = sizes.routing;
  routing = read_routing(json, "n_routed_experts", 8, 2);
  routing.score = RouterScore::kSigmoid;
  routing.normalised = json.bool_or("norm_topk_prob", true);
  routing.scale = static_cast<float>(json.number_or("routed_scaling_factor", 1.0, kScale));
  read_groups(json, {}, routing);
  routing.shared = SharedExpert::kPlain;
  sizes.ffn_dim = json.int_or("moe_intermediate_size", 7688, kWidth);
  sizes.shared_ffn_dim = json.int_or("moe_shared_expert_intermediate_size", 7688, kWidth);
  set_experts(sizes, std::move(mixed), config);
  config.expert_names.block = "mixer.";
  config.expert_names.correction = "gate.e_score_correction_bias";
  config.expert_names.shared = "shared_experts.";
}

void read_routed_experts(const JsonObject& json, const RoutedDefaults& missing,
                         DecoderConfig& config) {
  ExpertsSizes sizes;
  Routing& routing = sizes.routing;
  const RoutedKeys& keys = missing.keys;
  routing = read_routing(json, key_of_count(json, keys.experts, "num_local_experts"),
                         missing.experts, missing.chosen, keys.chosen);
  routing.score = missing.score;
  routing.normalised = json.find_bool(keys.normalised).value_or(missing.normalised);
  routing.scale =
      static_cast<float>(json.number_or("routed_scaling_factor", missing.scale, kScale));
  read_groups(json, missing, routing);
  sizes.ffn_dim = json.int_or("moe_intermediate_size", missing.ffn_dim, kWidth);
  add_shared(sizes, json.find_int(keys.shared, kShared)
                        .value_or(json.contains(keys.shared) ? 0 : missing.shared));
  const std::int64_t dense = json.int_or("first_k_dense_replace", missing.dense, {0, 1 << 20});
  set_experts(sizes, read_mlp_types(json, config.layers, dense), config);
  if (missing.score == RouterScore::kSigmoid) {
    config.expert_names.correction = "gate.e_score_correction_bias";
  }
  config.expert_names.shared = "shared_experts.";
}

void read_kimi_experts(const JsonObject& json, DecoderConfig& config) {
  RoutedDefaults kimi{.experts = 256, .chosen = 8, .ffn_dim = 1024, .dense = 1, .scale = 2.446};
  kimi.keys.experts = "num_experts";
  kimi.keys.chosen = key_of_count(json, "num_experts_per_token", "num_experts_per_tok");
  kimi.keys.shared = key_of_count(json, "num_shared_experts", "n_shared_experts");
  kimi.keys.normalised = key_of_count(json, "moe_renormalize", "norm_topk_prob");
  kimi.keys.groups = key_of_count(json, "num_expert_group", "n_group");
  read_routed_experts(json, kimi, config);
  name_by_numbers(config.expert_names);
}

void read_glm4_moe(const JsonObject& json, DecoderConfig& config) {
  config.attention_bias = json.bool_or("attention_bias", false);  // never on the output
  config.qk_norm = json.bool_or("use_qk_norm", false);
  config.rotary_dim = read_rotary_dim(json, config.head_dim, 0.5);
  read_routed_experts(json, {.experts = 128, .chosen = 8, .ffn_dim = 1408, .dense = 1}, config);
}

void read_minimax_m2(const JsonObject& json, DecoderConfig& config) {
  config.qk_norm = config.qk_norm_whole = true;
  const double rotated = static_cast<double>(json.int_or("rotary_dim", config.head_dim, kWidth));
  config.rotary_dim =
      read_rotary_dim(json, config.head_dim, rotated / static_cast<double>(config.head_dim));
  ExpertsSizes sizes;
  sizes.routing =
      read_routing(json, key_of_count(json, "num_local_experts", "num_experts"), 256, 8);
  sizes.routing.score = RouterScore::kSigmoid;
  sizes.routing.normalised = true;
  sizes.ffn_dim = config.ffn_dim;
  set_experts(sizes, all_of(config), config);
  name_by_numbers(config.expert_names);
  config.expert_names.correction = "e_score_correction_bias";
}

void read_hy_v3(const JsonObject& json, DecoderConfig& config) {
  config.attention_bias = config.attention_out_bias = json.bool_or("attention_bias", false);
  if (json.bool_or("mlp_bias", false)) {
    json.fail("mlp_bias", "false (biases of mixtures are not supported here)");
  }
  config.qk_norm = true;
  ExpertsSizes sizes;
  sizes.routing =
      read_routing(json, key_of_count(json, "num_experts", "num_local_experts"), 192, 8);
  sizes.routing.score = RouterScore::kSigmoid;
  sizes.routing.normalised = true;
  sizes.routing.scale = static_cast<float>(json.number_or("router_scaling_factor", 2.826, kScale));
  sizes.ffn_dim = json.int_or("moe_intermediate_size", 1536, kWidth);
  add_shared(sizes, json.int_or("num_shared_experts", 1, kShared));
  set_experts(sizes, read_mlp_types(json, config.layers, 1), config);
  config.expert_names.router = "router.gate.weight";
  config.expert_names.correction = "expert_bias";
  config.expert_names.shared = "shared_mlp.";
}

void read_gpt_oss(const JsonObject& json, DecoderConfig& config) {
  config.attention_bias = config.attention_out_bias = json.bool_or("attention_bias", true);
  config.attention_sinks = true;
  set_windows(
      json, read_window(json, 128), [](std::int64_t layer) { return layer % 2 == 0; }, config);
  if (json.has("rope_parameters") || json.has("rope_scaling")) {
    config.rope = read_rope(json, config.max_positions, config.head_dim, config.rotary_dim, 150000);
  } else {
    config.rope.type = RopeType::kYarn;
    config.rope.theta = json.number_or("rope_theta", 150000, {1.0, 1e15});
    config.rope.factor = 32;
    config.rope.max_positions = config.max_positions;
    config.rope.original_positions = 4096;
    config.rope.truncate = false;
  }
  ExpertsSizes sizes;
  sizes.routing = read_routing(json, "num_local_experts", 128, 4);
  sizes.routing.normalised = true;
  sizes.ffn_dim = config.ffn_dim;
  set_experts(sizes, all_of(config), config);
  config.expert_activation = {Activation::Kind::kClamped,
                              static_cast<float>(json.number_or("swiglu_limit", 7.0, kScale)),
                              static_cast<float>(json.number_or("swiglu_alpha", 1.702, kScale))};
  config.expert_names.router = "router.weight";
  config.expert_names.router_bias = "router.bias";
  config.expert_names.in_turns = true;
  const auto stored = json.find_object("quantization_config");
  config.expert_names.in_mxfp4 = stored && stored->find_string("quant_method") == "mxfp4";
}

void read_llama4_experts(const JsonObject& json, DecoderConfig& config) {
  ExpertsSizes sizes;
  sizes.routing = read_routing(json, "num_local_experts", 16, 1);
  sizes.routing.score = RouterScore::kSigmoid;
  sizes.routing.weighs_inputs = true;
  sizes.routing.shared = SharedExpert::kPlain;
  sizes.ffn_dim = sizes.shared_ffn_dim = config.ffn_dim;
  config.ffn_dim = json.int_or("intermediate_size_mlp", 16384, kWidth);
  std::vector<bool> mixed(static_cast<std::size_t>(config.layers), false);
  if (const auto listed = json.find_ints("moe_layers", {0, config.layers - 1})) {
    for (const std::int64_t layer : *listed) mixed[static_cast<std::size_t>(layer)] = true;
  } else {
    const std::int64_t step = json.int_or("interleave_moe_layer_step", 1, {1, 1 << 20});
    for (std::int64_t i = step - 1; i < config.layers; i += step) {
      mixed[static_cast<std::size_t>(i)] = true;
    }
  }
  set_experts(sizes, std::move(mixed), config);
  config.expert_names.block = config.mlp_names.block;
  config.expert_names.router = "router.weight";
  config.expert_names.transposed = true;
}

void read_lfm2_experts(const JsonObject& json, DecoderConfig& config) {
  ExpertsSizes sizes;
  sizes.routing = read_routing(json, 32, 4);
  sizes.routing.score = RouterScore::kSigmoid;
  sizes.routing.normalised = json.bool_or("norm_topk_prob", true);
  sizes.routing.sum_bias = 1e-6F;
  sizes.routing.scale = static_cast<float>(json.number_or("routed_scaling_factor", 1.0, kScale));
  sizes.ffn_dim = json.int_or("moe_intermediate_size", 1792, kWidth);
  const std::int64_t dense = json.int_or("num_dense_layers", 2, {0, 1 << 20});
  std::vector<bool> mixed;
  for (std::int64_t i = 0; i < config.layers; ++i) mixed.push_back(i >= dense);
  set_experts(sizes, std::move(mixed), config);
  name_by_numbers(config.expert_names);
  config.expert_names.block = config.mlp_names.block;
  if (json.bool_or("use_expert_bias", true)) config.expert_names.correction = "expert_bias";
}

void read_next_experts(const JsonObject& json, DecoderConfig& config) {
  ExpertsSizes sizes = read_with_shared(json, 512, 10);
  sizes.routing.normalised = json.bool_or("norm_topk_prob", true);
  set_experts(sizes, read_mixed(json, config.layers), config);
}

void read_qwen3_5_experts(const JsonObject& json, DecoderConfig& config) {
  ExpertsSizes sizes = read_with_shared(json, 256, 8);
  sizes.routing.normalised = true;
  set_experts(sizes, all_of(config), config);
}

}  // namespace dendrite
