#include "model/config_short_conv.h"

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "model/config_experts.h"
#include "model/config_rope.h"
#include "model/config_windows.h"

namespace dendrite {
namespace {

constexpr IntRange kTaps{2, 16};  // what a state keeps of them lies in the chunk before it
constexpr IntRange kWidth{1, 1 << 20};
constexpr NumberRange kMultiplier{1e-6, 1e6};

constexpr const char* kConv = "conv";
constexpr const char* kFull = "full_attention";
constexpr const char* kSliding = "sliding_attention";

/// What each layer is, of `kinds`: "layer_types" says it, else `usual`.
std::vector<std::string> read_kinds(const JsonObject& json, std::int64_t layers,
                                    const std::vector<std::string>& kinds,
                                    const std::function<const char*(std::int64_t)>& usual) {
  const char* const key = "layer_types";
  std::vector<std::string> types;
  if (const auto said = json.find_strings(key)) {
    types = *said;
    if (std::ssize(types) != layers) {
      json.fail(key, "one for each of num_hidden_layers, " + std::to_string(layers));
    }
  } else {
    for (std::int64_t i = 0; i < layers; ++i) types.emplace_back(usual(i));
  }
  for (const std::string& type : types) {
    if (std::ranges::find(kinds, type) != kinds.end()) continue;
    std::string expected;
    for (const std::string& kind : kinds) {
      expected += (expected.empty() ? "" : " or ") + in_quotes(kind);
    }
    json.fail(key, expected + " in each place (" + in_quotes(type) + " is not supported)");
  }
  if (std::ranges::count(types, kConv) == layers) {
    json.fail(key, "one of attention among " + std::to_string(layers) +
                       " (models without any are not supported)");
  }
  return types;
}

void set_convolutions(const JsonObject& json, const std::vector<std::string>& types,
                      std::int64_t taps, DecoderConfig& config) {
  if (std::ranges::count(types, kConv) == 0) return;
  config.short_conv = {config.dim, json.int_or("conv_L_cache", taps, kTaps)};
  config.short_conv_bias = json.bool_or("conv_bias", false);
  for (const std::string& type : types) config.recurrent.push_back(type == kConv);
}

/// What all of them have in common.
void read_names_and_eps(const JsonObject& json, DecoderConfig& config) {
  const char* const eps = "norm_eps";
  if (json.has(eps)) config.norm_eps = static_cast<float>(json.require_number(eps, {0.0, 1.0}));
  config.qk_norm = true;
  config.norms.before_mixer = "operator_norm";
  config.norms.before_ffn = "ffn_norm";
  config.final_norm = "embedding_norm";
  config.mlp_names = {"feed_forward.", "w1", "w3", "w2"};
}

/// LFM2 and its mixtures. Missing layer_types: convolutions but for "full_attn_idxs".
void read_lfm2_layers(const JsonObject& json, DecoderConfig& config) {
  read_names_and_eps(json, config);
  config.attention_names = {"q_layernorm", "k_layernorm", "out_proj"};
  if (json.has("tie_embedding")) config.tie_embeddings = json.bool_or("tie_embedding", true);
  const char* const key = "full_attn_idxs";
  const auto said = json.find_ints(key, {0, config.layers - 1});
  const auto is_full = [&](std::int64_t layer) {
    return !said || std::ranges::find(*said, layer) != said->end();
  };
  const auto types = read_kinds(json, config.layers, {kConv, kFull},
                                [&](std::int64_t layer) { return is_full(layer) ? kFull : kConv; });
  set_convolutions(json, types, 3, config);
}

/// LFM2's MLPs are less wide than the key says.
std::int64_t adjusted_width(const JsonObject& json, std::int64_t width) {
  if (!json.bool_or("block_auto_adjust_ff_dim", true)) return width;
  const std::int64_t multiple = json.int_or("block_multiple_of", 256, kWidth);
  width = 2 * width / 3;
  if (json.contains("block_ffn_dim_multiplier") && !json.has("block_ffn_dim_multiplier")) {
    return width;
  }
  const double factor = json.number_or("block_ffn_dim_multiplier", 1.0, kMultiplier);
  width = static_cast<std::int64_t>(factor * static_cast<double>(width));
  const std::int64_t rounded = (width + multiple - 1) / multiple * multiple;
  if (rounded < kWidth.min || rounded > kWidth.max) {
    json.fail("block_ffn_dim_multiplier", "one that makes a width of 1 to " +
                                              std::to_string(kWidth.max) + " (it makes " +
                                              std::to_string(rounded) + ")");
  }
  return rounded;
}

/// LFM3's angles where config.json says none: half of the pairs of layers of full attention rotate.
LayerRopes usual_ropes(std::int64_t max_positions) {
  LayerRopes ropes;
  ropes.full.type = RopeType::kProportional;
  ropes.full.theta = 1e6;
  ropes.full.rotated_part = 0.5;
  ropes.full.max_positions = ropes.local.max_positions = max_positions;
  return ropes;
}

}  // namespace

void read_lfm2(const JsonObject& json, DecoderConfig& config) {
  read_lfm2_layers(json, config);
  const char* const key = "block_ff_dim";
  if (json.has(key)) config.ffn_dim = json.require_int(key, kWidth);
  config.ffn_dim = adjusted_width(json, config.ffn_dim);
}

void read_lfm2_moe(const JsonObject& json, DecoderConfig& config) {
  if (!json.has("layer_types") && !json.has("full_attn_idxs")) {
    json.fail("layer_types", "\"conv\" or \"full_attention\" for each layer");
  }
  read_lfm2_layers(json, config);
  read_lfm2_experts(json, config);
}

void read_lfm3(const JsonObject& json, DecoderConfig& config) {
  read_names_and_eps(json, config);
  config.attention_bias = config.attention_out_bias = json.bool_or("attention_bias", false);
  config.attention_head_gate = json.bool_or("use_attention_gate", true);
  if (config.attention_bias && config.attention_head_gate) {
    json.fail("attention_bias", "false (biases beside gates are not supported here)");
  }
  if (json.bool_or("use_sandwich_norm", true)) {
    config.norms.behind_mixer = "post_operator_norm";
    config.norms.behind_ffn = "post_ffn_norm";
  }
  const auto types =
      read_kinds(json, config.layers, {kConv, kFull, kSliding}, [](std::int64_t layer) {
        if (layer % 4 == 2) return kFull;
        return layer % 4 == 0 && layer > 0 ? kSliding : kConv;
      });
  set_convolutions(json, types, 7, config);
  const std::int64_t window = read_window(json, 256);
  for (std::size_t i = 0; i < types.size(); ++i) {
    if (types[i] != kSliding) continue;
    if (window == 0) json.fail("sliding_window", "a number, as layers slide by layer_types");
    config.windows[i] = window;
  }
  const LayerRopes ropes =
      json.has("rope_parameters") || json.has("rope_scaling")
          ? read_layer_ropes(json, config.max_positions, config.head_dim, 1e6, 1e4, nullptr)
          : usual_ropes(config.max_positions);
  config.rope = ropes.full;
  config.local_rope = ropes.local;
}

}  // namespace dendrite
