#include "model/config_dense.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "model/config_rope.h"
#include "model/config_windows.h"

namespace dendrite {
namespace {

constexpr NumberRange kScale{1e-6, 1e6};
constexpr IntRange kPattern{1, 1 << 20};

/// Of layers that norm what they give alone: Olmo, Exaone 4.
LayerNorms behind_alone() {
  return {"", "post_attention_layernorm", "", "post_feedforward_layernorm"};
}

/// "attention_bias" of q, k and v, and of o.
void read_biases(const JsonObject& json, DecoderConfig& config) {
  config.attention_bias = config.attention_out_bias = json.bool_or("attention_bias", false);
  config.mlp_bias = json.bool_or("mlp_bias", false);
}

/// A number above 0; 0: null.
float read_cap(const JsonObject& json, const char* key, double missing) {
  if (!json.contains(key)) return static_cast<float>(missing);
  return static_cast<float>(json.find_number(key, kScale).value_or(0.0));
}

/// Every so many-th layer is of full attention where a file does not say which are.
std::function<bool(std::int64_t)> all_but_every(std::int64_t step) {
  return [step](std::int64_t layer) { return (layer + 1) % step != 0; };
}

void set_layer_ropes(const LayerRopes& ropes, DecoderConfig& config) {
  config.rope = ropes.full;
  config.local_rope = ropes.local;
}

/// What Gemma 2 and 3 have in common, but for windows.
void read_gemma(const JsonObject& json, DecoderConfig& config) {
  config.attention_bias = config.attention_out_bias = json.bool_or("attention_bias", false);
  config.zero_centred_norms = true;
  config.norms = {"input_layernorm", "post_attention_layernorm", "pre_feedforward_layernorm",
                  "post_feedforward_layernorm"};
  config.embedding_scale = std::sqrt(static_cast<float>(config.dim));
  config.embedding_scale_rounds = true;
  const double scalar = json.number_or("query_pre_attn_scalar", 256, kScale);
  config.attention_scale = static_cast<float>(std::pow(scalar, -0.5));
  if (json.find_bool("use_bidirectional_attention").value_or(false)) {
    json.fail("use_bidirectional_attention",
              "false (attention to what comes after is not supported)");
  }
}

}  // namespace

void read_llama(const JsonObject& json, DecoderConfig& config) {
  read_biases(json, config);
  if (config.dim % config.heads != 0) {
    json.fail("hidden_size", "a multiple of num_attention_heads, " + std::to_string(config.heads));
  }
  const auto types = read_layer_types(json, config.layers);
  if (types && std::ranges::count(*types, "full_attention") != config.layers) {
    json.fail("layer_types", "only \"full_attention\" (a llama has no sliding window)");
  }
}

void read_mistral(const JsonObject& json, DecoderConfig& config) {
  set_window(json, read_window(json), config);
}

void read_ministral3(const JsonObject& json, DecoderConfig& config) {
  set_window(json, read_window(json, 0), config);
  if (json.has("rope_parameters") || json.has("rope_scaling")) {
    config.rope = read_rope(json, config.max_positions, config.head_dim, config.rotary_dim, 1e6);
    config.query_growth = read_query_growth(json);
    return;
  }
  config.rope.type = RopeType::kYarn;
  config.rope.theta = 1e6;
  config.rope.factor = 16;
  config.rope.max_positions = config.max_positions;
  config.rope.original_positions = 16384;
  config.rope.mscale = config.rope.mscale_all_dim = 1;
  config.query_growth = {0.1, config.rope.original_positions};
}

void read_qwen2(const JsonObject& json, DecoderConfig& config) {
  config.attention_bias = true;  // always, and never on the output
  set_qwen_windows(json, config);
}

void read_qwen3(const JsonObject& json, DecoderConfig& config) {
  config.attention_bias = config.attention_out_bias = json.bool_or("attention_bias", false);
  config.qk_norm = true;
  set_qwen_windows(json, config);
}

void read_smollm3(const JsonObject& json, DecoderConfig& config) {
  read_biases(json, config);
  config.unrotated = read_unrotated(json, config.layers);
  const bool slides = json.bool_or("use_sliding_window", false);
  const std::int64_t window = slides ? read_window(json, 0) : 0;
  set_windows(
      json, window, [&](std::int64_t layer) { return window > 0 && !config.is_rotated(layer); },
      config);
}

void read_seed_oss(const JsonObject& json, DecoderConfig& config) {
  config.attention_bias = json.bool_or("attention_bias", true);
  config.attention_out_bias = json.bool_or("attention_out_bias", false);
  config.mlp_bias = json.bool_or("mlp_bias", false);
}

void read_granite(const JsonObject& json, DecoderConfig& config) {
  read_biases(json, config);
  const auto read = [&](const char* key) {
    return static_cast<float>(json.number_or(key, 1.0, kScale));
  };
  config.embedding_scale = read("embedding_multiplier");
  config.attention_scale = read("attention_multiplier");
  config.residual_scale = read("residual_multiplier");
  config.logit_scale = 1 / read("logits_scaling");
}

void read_phi3(const JsonObject& json, DecoderConfig& config) {
  config.fused_qkv = config.fused_mlp = true;
  set_window(json, read_window(json, 0), config);
  config.rotary_dim = read_rotary_dim(json, config.head_dim, 1.0);
  config.rope = read_longrope(json, config.max_positions, config.rotary_dim);
}

void read_glm4(const JsonObject& json, DecoderConfig& config) {
  config.attention_bias = json.bool_or("attention_bias", true);  // never on the output
  config.fused_mlp = true;
  config.norms = {"input_layernorm", "post_self_attn_layernorm", "post_attention_layernorm",
                  "post_mlp_layernorm"};
  config.rope_pairs = true;
  config.rotary_dim = read_rotary_dim(json, config.head_dim, 0.5);
}

void read_ernie4_5(const JsonObject& json, DecoderConfig& config) {
  config.attention_bias = config.attention_out_bias = config.mlp_bias =
      json.bool_or("use_bias", false);
  config.rope_pairs = true;
}

void read_olmo2(const JsonObject& json, DecoderConfig& config) {
  config.attention_bias = config.attention_out_bias = json.bool_or("attention_bias", false);
  config.qk_norm = config.qk_norm_whole = true;
  config.norms = behind_alone();
}

void read_olmo3(const JsonObject& json, DecoderConfig& config) {
  read_olmo2(json, config);
  set_windows(json, read_window(json), all_but_every(4), config);
  set_layer_ropes(read_layer_ropes(json, config.max_positions, config.head_dim, 5e5, 5e5, nullptr),
                  config);
}

void read_exaone4(const JsonObject& json, DecoderConfig& config) {
  config.qk_norm = true;
  config.norms = behind_alone();
  const std::int64_t window = read_window(json);
  if (window == 0) return set_window(json, 0, config);
  const bool counts = !json.contains("layer_types");
  set_windows(json, window,
              all_but_every(counts ? json.int_or("sliding_window_pattern", 4, kPattern) : 4),
              config);
  for (const std::int64_t of_layer : config.windows) config.unrotated.push_back(of_layer == 0);
}

void read_gemma2(const JsonObject& json, DecoderConfig& config) {
  read_gemma(json, config);
  config.attention_soft_cap = read_cap(json, "attn_logit_softcapping", 50);
  config.logit_soft_cap = read_cap(json, "final_logit_softcapping", 30);
  set_windows(json, read_window(json), all_but_every(2), config);
}

void read_gemma3(const JsonObject& json, DecoderConfig& config) {
  read_gemma(json, config);
  config.qk_norm = true;
  config.logit_soft_cap = read_cap(json, "final_logit_softcapping", 0);
  set_windows(json, read_window(json),
              all_but_every(json.int_or("sliding_window_pattern", 6, kPattern)), config);
  set_layer_ropes(read_layer_ropes(json, config.max_positions, config.head_dim, 1e6, 1e4,
                                   "rope_local_base_freq"),
                  config);
}

}  // namespace dendrite
