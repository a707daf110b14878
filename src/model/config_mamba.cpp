#include "model/config_mamba.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "model/config_dense.h"
#include "model/config_experts.h"

namespace dendrite {
namespace {

constexpr IntRange kHeads{1, 4096};
constexpr IntRange kHeadDim{1, 1024};
constexpr IntRange kStateDim{1, 1024};
constexpr IntRange kTaps{2, 16};  // what a state keeps of them lies in the chunk before it
constexpr IntRange kWidth{1, 1 << 20};
constexpr IntRange kExpand{1, 64};
constexpr NumberRange kSteps{0.0, 1e6};

enum class Kind : std::uint8_t { kMamba, kAttention, kMlp, kExperts };

void check_groups(const JsonObject& json, const char* heads, const MambaKind& mamba) {
  if (mamba.heads % mamba.groups == 0) return;
  json.fail(heads, "a multiple of the number of groups, " + std::to_string(mamba.groups));
}

/// Layers of attention must be among them.
void check_has_attention(const JsonObject& json, const char* key, const std::vector<Kind>& kinds) {
  if (std::ranges::count(kinds, Kind::kAttention) > 0) return;
  json.fail(key, "a layer of attention among " + std::to_string(kinds.size()) +
                     " (models without any are not supported)");
}

/// Granite's: "layer_types" as the hub or as transformers 5 spells them.
std::vector<Kind> read_granite_layers(const JsonObject& json, std::int64_t layers) {
  const char* const key = "layer_types";
  const std::vector<std::string> usual(static_cast<std::size_t>(layers), "mamba");
  const auto types = json.find_strings(key).value_or(usual);
  if (std::ssize(types) != layers) {
    json.fail(key, "one for each of num_hidden_layers, " + std::to_string(layers));
  }
  std::vector<Kind> kinds;
  for (const std::string& type : types) {
    const bool mamba = type == "mamba" || type == "linear_attention";
    if (!mamba && type != "attention" && type != "full_attention") {
      json.fail(key, "\"mamba\" or \"attention\" in each place (" + in_quotes(type) +
                         " is not supported)");
    }
    kinds.push_back(mamba ? Kind::kMamba : Kind::kAttention);
  }
  check_has_attention(json, key, kinds);
  return kinds;
}

MambaKind read_granite_mamba(const JsonObject& json, std::int64_t dim) {
  MambaKind mamba;
  mamba.heads = json.int_or("mamba_n_heads", 128, kHeads);
  mamba.groups = json.int_or("mamba_n_groups", 1, kHeads);
  mamba.state_dim = json.int_or("mamba_d_state", 256, kStateDim);
  mamba.taps = json.int_or("mamba_d_conv", 4, kTaps);
  mamba.bias = json.bool_or("mamba_proj_bias", false);
  mamba.conv_bias = json.bool_or("mamba_conv_bias", true);
  check_groups(json, "mamba_n_heads", mamba);
  const std::int64_t width = json.int_or("mamba_expand", 2, kExpand) * dim;
  const char* const head_dim = "mamba_d_head";
  const bool counts = json.has(head_dim) && !json.is_string(head_dim);  // "auto"
  mamba.head_dim = counts ? json.require_int(head_dim, kHeadDim) : width / mamba.heads;
  if (mamba.head_dim * mamba.heads != width) {
    json.fail(
        counts ? head_dim : "mamba_n_heads",
        "one that makes heads as wide as mamba_expand times hidden_size, " + std::to_string(width));
  }
  if (const auto limits = json.find_limits("time_step_limit")) {
    mamba.least_dt = static_cast<float>(limits->first);
    mamba.most_dt = static_cast<float>(limits->second);
  }
  return mamba;
}

/// Whether RoPE turns q and k: "rope", else there are no positions.
bool is_rotated(const JsonObject& json) {
  const char* const key = "position_embedding_type";
  const std::string type = json.find_string(key).value_or("nope");
  if (type != "rope" && type != "nope") json.fail(key, "\"rope\", \"nope\" or null");
  return type == "rope";
}

/// A layer by the name that transformers 5 or the hub has, or by the letter of a pattern.
Kind nemotron_kind(const JsonObject& json, const char* key, const std::string& type) {
  if (type == "linear_attention" || type == "mamba" || type == "M") return Kind::kMamba;
  if (type == "full_attention" || type == "attention" || type == "*") return Kind::kAttention;
  if (type == "mlp" || type == "-") return Kind::kMlp;
  if (type == "moe" || type == "E") return Kind::kExperts;
  json.fail(key, "layers of Mamba-2 (M), attention (*), MLPs (-) and mixtures (E) alone (" +
                     in_quotes(type) + " is not supported)");
}

std::vector<Kind> read_nemotron_layers(const JsonObject& json) {
  std::vector<Kind> kinds;
  for (const char* key : {"layers_block_type", "layer_types"}) {
    if (const auto types = json.find_strings(key)) {
      for (const std::string& type : *types) kinds.push_back(nemotron_kind(json, key, type));
      check_has_attention(json, key, kinds);
      return kinds;
    }
  }
  const char* const key = "hybrid_override_pattern";
  for (const char letter : json.require_string(key)) {
    kinds.push_back(nemotron_kind(json, key, std::string(1, letter)));
  }
  check_has_attention(json, key, kinds);
  return kinds;
}

/// A key of two names.
const char* spelled(const JsonObject& json, const char* usual, const char* other) {
  return json.has(other) ? other : usual;
}

MambaKind read_nemotron_mamba(const JsonObject& json) {
  MambaKind mamba;
  mamba.heads = json.int_or("mamba_num_heads", 128, kHeads);
  mamba.head_dim = json.int_or("mamba_head_dim", 64, kHeadDim);
  mamba.groups = json.int_or(spelled(json, "n_groups", "mamba_n_groups"), 8, kHeads);
  mamba.state_dim = json.int_or("ssm_state_size", 128, kStateDim);
  mamba.taps = json.int_or(spelled(json, "conv_kernel", "mamba_d_conv"), 4, kTaps);
  mamba.bias = json.bool_or("use_bias", false);
  mamba.conv_bias = json.bool_or(spelled(json, "use_conv_bias", "mamba_conv_bias"), true);
  mamba.least_dt = static_cast<float>(
      json.number_or(spelled(json, "time_step_min", "mamba_dt_min"), 0.001, kSteps));
  mamba.block = "mixer.";
  check_groups(json, "mamba_num_heads", mamba);
  return mamba;
}

void refuse_others(const JsonObject& json) {
  const std::string activation = json.find_string("mlp_hidden_act").value_or("relu2");
  if (activation != "relu2") {
    json.fail("mlp_hidden_act", "\"relu2\" (other activations are not supported)");
  }
  if (json.bool_or("attention_bias", false)) {
    json.fail("attention_bias", "false (biases of attention are not supported here)");
  }
  if (json.has("sliding_window")) {
    json.fail("sliding_window", "null (windows are not supported here)");
  }
}

}  // namespace

void read_granite_hybrid(const JsonObject& json, DecoderConfig& config) {
  read_granite(json, config);
  config.mlp_bias = false;
  const auto kinds = read_granite_layers(json, config.layers);
  if (std::ranges::count(kinds, Kind::kMamba) > 0) {
    config.mamba = read_granite_mamba(json, config.dim);
    for (const Kind kind : kinds) config.recurrent.push_back(kind == Kind::kMamba);
  }
  if (!is_rotated(json)) config.unrotated.assign(kinds.size(), true);
  config.fused_mlp = true;
  config.mlp_names = {"shared_mlp.", "gate_proj", "up_proj", "output_linear", "input_linear"};
  read_granite_hybrid_experts(json, config);
  config.ffn_dim = json.int_or("shared_intermediate_size", 1024, kWidth);
}

void read_nemotron_h(const JsonObject& json, DecoderConfig& config) {
  refuse_others(json);
  const auto kinds = read_nemotron_layers(json);
  config.layers = std::ssize(kinds);  // "num_hidden_layers" need not be there
  config.windows.assign(kinds.size(), 0);
  config.unrotated.assign(kinds.size(), true);
  if (std::ranges::count(kinds, Kind::kMamba) > 0) {
    config.mamba = read_nemotron_mamba(json);
    for (const Kind kind : kinds) config.recurrent.push_back(kind == Kind::kMamba);
  }
  for (const Kind kind : kinds) {
    const bool mixes = kind == Kind::kMamba || kind == Kind::kAttention;
    config.layer_parts.push_back(mixes ? LayerParts::kMixer : LayerParts::kFeedForward);
  }
  config.norm_eps = static_cast<float>(json.number_or("layer_norm_epsilon", 1e-5, {0.0, 1.0}));
  config.squared_relu = true;
  config.mlp_bias = json.bool_or("mlp_bias", false);
  config.norms.before_mixer = config.norms.before_ffn = "norm";
  config.final_norm = "norm_f";
  config.embedding = "embeddings";
  config.attention_names.block = config.mlp_names.block = "mixer.";
  if (std::ranges::count(kinds, Kind::kExperts) > 0) {
    std::vector<bool> mixed;
    for (const Kind kind : kinds) mixed.push_back(kind == Kind::kExperts);
    read_nemotron_experts(json, std::move(mixed), config);
  }
}

}  // namespace dendrite
