#include "model/config_gemma4.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>
#include <vector>

#include "model/config_rope.h"
#include "model/config_windows.h"

namespace dendrite {
namespace {

constexpr IntRange kHeads{1, 4096};
constexpr IntRange kHeadDim{2, 1024};
constexpr IntRange kWidth{1, 1 << 20};
constexpr IntRange kCount{1, 4096};
constexpr NumberRange kScale{1e-6, 1e6};
constexpr double kTheta = 1e6;
constexpr double kLocalTheta = 1e4;

void read_windows(const JsonObject& json, std::int64_t missing, DecoderConfig& config) {
  set_windows(
      json, read_window(json, missing), [](std::int64_t layer) { return (layer + 1) % 6 != 0; },
      config);
  config.windows.back() = 0;  // whatever the file says
}

/// "per_layer_config": what layers without a window have that others have not, the same for each.
KvLayers read_differing(const JsonObject& json, const DecoderConfig& config) {
  const char* const key = "per_layer_config";
  const JsonObject all = json.require_object(key);
  std::vector<bool> differs(config.windows.size(), false);
  std::optional<KvLayers> wide;
  for (const std::string_view name : all.keys()) {
    std::size_t layer = differs.size();
    std::from_chars(name.data(), name.data() + name.size(), layer);
    if (layer >= differs.size()) {
      all.fail(name, "a number of a layer, 0 to " + std::to_string(config.layers - 1));
    }
    differs[layer] = true;
    const JsonObject one = all.require_object(name);
    for (const std::string_view field : one.keys()) {
      if (field != "head_dim" && field != "num_key_value_heads") {
        one.fail(field, "no such key (layers may differ in head_dim and num_key_value_heads)");
      }
    }
    const KvLayers heads{0, one.int_or("num_key_value_heads", config.kv_heads, kHeads),
                         one.int_or("head_dim", config.head_dim, kHeadDim)};
    if (wide && heads != *wide) all.fail(name, "what the first of them is");
    wide = heads;
  }
  for (std::size_t i = 0; i < differs.size(); ++i) {
    if (wide && differs[i] != (config.windows[i] == 0)) {
      json.fail(key, "an entry for each layer of full attention and for no other (layer " +
                         std::to_string(i) + ")");
    }
  }
  return wide.value_or(KvLayers{0, config.kv_heads, config.head_dim});
}

/// Heads of layers without a window.
void read_wide_heads(const JsonObject& json, DecoderConfig& config) {
  KvLayers wide{0, config.kv_heads, 0};
  if (json.has("per_layer_config")) {
    wide = read_differing(json, config);
  } else {
    wide.head_dim = json.int_or("global_head_dim", 512, kHeadDim);
    const auto heads = json.find_int("num_global_key_value_heads", kHeads);
    if (heads && config.wide_value_is_key) wide.kv_heads = *heads;
  }
  if (wide.head_dim % 2 != 0) json.fail("global_head_dim", "an even number");
  if (config.heads % wide.kv_heads != 0) {
    json.fail("num_global_key_value_heads",
              "a divisor of num_attention_heads, " + std::to_string(config.heads));
  }
  const auto full = std::ranges::count(config.windows, 0);
  if (full == config.layers) {
    config.head_dim = config.rotary_dim = wide.head_dim;
    config.kv_heads = wide.kv_heads;
  } else {
    wide.layers = full;
    config.wide = wide;
  }
}

void read_shared_kv(const JsonObject& json, DecoderConfig& config) {
  const char* const key = "num_kv_shared_layers";
  config.shared_kv = json.int_or(key, 0, {0, config.layers - 1});
  if (config.shared_kv == 0) return;
  const auto begin = config.windows.begin();
  const auto end_of_own = begin + (config.layers - config.shared_kv);
  for (auto window = end_of_own; window != config.windows.end(); ++window) {
    if (std::find(begin, end_of_own, *window) == end_of_own) {
      json.fail(key, "fewer: layer " + std::to_string(window - begin) +
                         " takes K and V of an earlier one of its kind, and there is none that has "
                         "its own");
    }
  }
  if (json.bool_or("use_double_wide_mlp", false)) config.shared_kv_ffn_dim = 2 * config.ffn_dim;
}

void read_ropes(const JsonObject& json, DecoderConfig& config) {
  const std::int64_t wide = config.wide ? config.wide->head_dim : config.head_dim;
  if (json.has("rope_parameters")) {
    const LayerRopes ropes =
        read_layer_ropes(json, config.max_positions, wide, kTheta, kLocalTheta, nullptr);
    config.rope = ropes.full;
    config.local_rope = ropes.local;
    return;
  }
  config.rope.type = RopeType::kProportional;
  config.rope.theta = kTheta;
  config.rope.rotated_part = 0.25;
  config.local_rope = RopeConfig{.theta = kLocalTheta};
}

void read_common(const JsonObject& json, std::int64_t window, DecoderConfig& config) {
  config.attention_bias = config.attention_out_bias = json.bool_or("attention_bias", false);
  config.qk_norm = config.value_norm = true;
  config.norms = {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                  "post_feedforward_layernorm"};
  config.embedding_scale = std::sqrt(static_cast<float>(config.dim));
  config.embedding_scale_rounds = true;
  config.attention_scale = 1;
  config.layer_scales = true;
  config.logit_soft_cap =
      static_cast<float>(json.find_number("final_logit_softcapping", kScale).value_or(0.0));
  const char* const both = "use_bidirectional_attention";
  if (const auto which = json.find_string(both); which && *which != "vision") {
    json.fail(both, "null or \"vision\" (attention to what comes after is not supported)");
  }
  config.wide_value_is_key = json.bool_or("attention_k_eq_v", false);
  read_windows(json, window, config);
  read_wide_heads(json, config);
  read_shared_kv(json, config);
  read_ropes(json, config);
}

void read_experts(const JsonObject& json, DecoderConfig& config) {
  if (!json.bool_or("enable_moe_block", false)) return;
  ExpertsSizes sizes;
  sizes.routing.experts = json.require_int("num_experts", kCount);
  sizes.routing.chosen = json.require_int("top_k_experts", {1, sizes.routing.experts});
  sizes.routing.normalised = true;
  sizes.ffn_dim = json.require_int("moe_intermediate_size", kWidth);
  config.experts = sizes;
  config.experts_beside = true;
  config.mixed.assign(static_cast<std::size_t>(config.layers), true);
  config.expert_activation = config.activation;
  ExpertNames& names = config.expert_names;
  names.block.clear();
  names.router = "router.proj.weight";
  names.router_norm = "router.scale";
  names.factors = "router.per_expert_scale";
}

}  // namespace

void read_gemma4(const JsonObject& json, DecoderConfig& config) {
  read_common(json, 512, config);
  read_experts(json, config);
  const std::int64_t dim = json.int_or("hidden_size_per_layer_input", 256, {0, kWidth.max});
  if (dim == 0) return;
  const char* const key = "vocab_size_per_layer_input";
  config.layer_inputs = {dim, json.int_or(key, 262144, {1, 4 << 20})};
  if (config.layer_inputs->vocab < config.vocab) {
    json.fail(key, "at least vocab_size, " + std::to_string(config.vocab));
  }
}

void read_gemma4_unified(const JsonObject& json, DecoderConfig& config) {
  read_common(json, 1024, config);
}

}  // namespace dendrite
