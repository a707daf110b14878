#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/gguf_writer.h"

namespace dendrite::test {

/// What llama.cpp's converter says of a config.json in a file's metadata.
class GgufConfig {
 public:
  explicit GgufConfig(const nlohmann::json& config)
      : config_(config), type_(config["model_type"].get<std::string>()) {
    static const std::map<std::string, std::string> kNames{{"mistral", "llama"},
                                                           {"mixtral", "llama"},
                                                           {"ministral3", "mistral3"},
                                                           {"qwen3_moe", "qwen3moe"},
                                                           {"qwen3_next", "qwen3next"},
                                                           {"qwen3_5_text", "qwen35"},
                                                           {"qwen3_5_moe_text", "qwen35moe"},
                                                           {"llama4_text", "llama4"},
                                                           {"gemma3_text", "gemma3"},
                                                           {"gemma4_text", "gemma4"},
                                                           {"gpt_oss", "gpt-oss"},
                                                           {"olmo3", "olmo2"},
                                                           {"glm4_moe", "glm4moe"},
                                                           {"minimax_m2", "minimax-m2"},
                                                           {"lfm2_moe", "lfm2moe"},
                                                           {"granitemoehybrid", "granitehybrid"}};
    architecture_ = kNames.contains(type_) ? kNames.at(type_) : type_;
    if (is_nemotron() && is("n_routed_experts")) architecture_ += "_moe";
  }

  const std::string& architecture() const { return architecture_; }
  std::int64_t head_dim() const { return number("head_dim", dim() / heads()); }
  bool is_nemotron() const { return type_ == "nemotron_h"; }
  bool has_mamba() const { return is_nemotron() || type_ == "granitemoehybrid"; }
  bool paired() const {
    for (const char* name : {"llama", "mistral3", "granite", "granitemoe", "smollm3",
                             "granitehybrid", "nemotron_h", "nemotron_h_moe"}) {
      if (architecture_ == name) return true;
    }
    return false;
  }
  bool zero_centred() const {
    return (type_.starts_with("gemma") && type_ != "gemma4_text") ||
           config_.contains("linear_num_key_heads");
  }

  void put(GgufWriter& out) {
    out_ = &out;
    out.text("general.architecture", architecture_);
    put_sizes();
    put_rope();
    put_experts();
    if (config_.contains("linear_num_key_heads")) put_delta_net();
    if (has_mamba()) put_mamba();
    put_windows();
    put_numbers();
  }

  /// Of layers without a window, where they differ.
  std::int64_t wide(const char* key) const {
    if (is("per_layer_config")) {
      return config_["per_layer_config"].front()[key].get<std::int64_t>();
    }
    return number(key == std::string("head_dim") ? "global_head_dim" : "num_global_key_value_heads",
                  number(key, 0));
  }

 private:
  std::int64_t number(const char* key, std::int64_t missing) const {
    return is(key) ? config_[key].get<std::int64_t>() : missing;
  }
  bool is(const char* key) const { return config_.contains(key) && !config_[key].is_null(); }
  std::int64_t dim() const { return number("hidden_size", 4096); }
  std::int64_t heads() const { return number("num_attention_heads", 32); }
  std::int64_t layers() const {
    return is("num_hidden_layers") ? config_["num_hidden_layers"].get<std::int64_t>()
                                   : std::ssize(config_["layers_block_type"]);
  }
  /// What a layer is, by the letters of a pattern.
  char kind_of(std::int64_t layer) const {
    const auto at = static_cast<std::size_t>(layer);
    if (is("hybrid_override_pattern")) {
      return config_["hybrid_override_pattern"].get<std::string>()[at];
    }
    const std::string type = config_[is_nemotron() ? "layers_block_type" : "layer_types"][at];
    return type == "mamba" || type == "linear_attention"     ? 'M'
           : type == "attention" || type == "full_attention" ? '*'
           : type == "moe"                                   ? 'E'
                                                             : '-';
  }
  /// A number of layers of these kinds, and 0 of the others.
  void put_each(const std::string& key, const std::string& kinds, std::int64_t value) {
    std::vector<std::int32_t> each;
    for (std::int64_t i = 0; i < layers(); ++i) {
      each.push_back(kinds.find(kind_of(i)) != kinds.npos ? static_cast<std::int32_t>(value) : 0);
    }
    out_->i32s(architecture_ + "." + key, each);
  }
  void u32(const std::string& key, std::int64_t value) {
    out_->u32(architecture_ + "." + key, static_cast<std::uint32_t>(value));
  }
  void f32(const std::string& key, double value) {
    out_->f32(architecture_ + "." + key, static_cast<float>(value));
  }
  void flags(const std::string& key, const std::vector<bool>& values) {
    out_->booleans(architecture_ + "." + key, values);
  }
  void copy_u32(const char* from, const char* key) {
    if (is(from)) u32(key, config_[from].get<std::int64_t>());
  }
  void copy_f32(const char* from, const char* key) {
    if (is(from)) f32(key, config_[from].get<double>());
  }

  void put_sizes() {
    u32("embedding_length", dim());
    if (architecture_ == "lfm2") {
      u32("feed_forward_length", adjusted_width());
    } else if (is_nemotron()) {
      const bool mixed = is("n_routed_experts");
      put_each("feed_forward_length", "-E",
               number(mixed ? "moe_intermediate_size" : "intermediate_size", 0));
    } else if (type_ != "gemma4_text") {
      copy_u32(type_ == "llama4_text" ? "intermediate_size_mlp" : "intermediate_size",
               "feed_forward_length");
    }
    const std::int64_t further = number(
        is("mtp_num_hidden_layers") ? "mtp_num_hidden_layers" : "num_nextn_predict_layers", 0);
    u32("block_count", layers() + further);
    if (further > 0) u32("nextn_predict_layers", further);
    copy_u32("max_position_embeddings", "context_length");
    u32("attention.head_count", heads());
    if (type_ == "gemma4_text") {
      put_differing();
    } else {
      put_kv_heads();
      u32("attention.key_length", head_dim());
      u32("attention.value_length", head_dim());
    }
    const char* const eps = is("norm_eps")             ? "norm_eps"
                            : is("layer_norm_epsilon") ? "layer_norm_epsilon"
                                                       : "rms_norm_eps";
    f32("attention.layer_norm_rms_epsilon", config_[eps].get<double>());
    copy_u32("conv_L_cache", "shortconv.l_cache");
  }

  /// Of LFM2's MLPs: two thirds, times a factor, up to whole multiples.
  std::int64_t adjusted_width() const {
    const double width = std::floor(config_["block_ffn_dim_multiplier"].get<double>() *
                                    static_cast<double>(number("block_ff_dim", 0) * 2 / 3));
    const std::int64_t multiple = number("block_multiple_of", 256);
    return (static_cast<std::int64_t>(width) + multiple - 1) / multiple * multiple;
  }

  /// For each layer, 0 of convolutions, where there are some.
  void put_kv_heads() {
    const char* const key = "attention.head_count_kv";
    const std::int64_t all = number("num_key_value_heads", heads());
    if (has_mamba()) return put_each(key, "*", all);
    if (!is("conv_L_cache")) return u32(key, all);
    std::vector<std::int32_t> each(static_cast<std::size_t>(layers()));
    for (std::size_t i = 0; i < each.size(); ++i) {
      const bool attends =
          is("layer_types") ? config_["layer_types"][i] == "full_attention"
                            : std::ranges::count(config_["full_attn_idxs"], nlohmann::json(i)) > 0;
      if (attends) each[i] = static_cast<std::int32_t>(all);
    }
    out_->i32s(architecture_ + "." + key, each);
  }

  /// Of layers of both kinds.
  void put_differing() {
    const std::int64_t shared = number("num_kv_shared_layers", 0);
    const std::int64_t width = number("intermediate_size", 0);
    const bool twice = config_.value("use_double_wide_mlp", false);
    std::vector<std::int32_t> widths, heads;
    for (std::int64_t i = 0; i < layers(); ++i) {
      widths.push_back(
          static_cast<std::int32_t>(twice && i >= layers() - shared ? 2 * width : width));
      const bool full = config_["layer_types"][static_cast<std::size_t>(i)] == "full_attention";
      heads.push_back(static_cast<std::int32_t>(full ? wide("num_key_value_heads")
                                                     : number("num_key_value_heads", 0)));
    }
    out_->i32s("gemma4.feed_forward_length", widths);
    out_->i32s("gemma4.attention.head_count_kv", heads);
    for (const char* of : {"key", "value"}) {
      u32(std::string("attention.") + of + "_length", wide("head_dim"));
      u32(std::string("attention.") + of + "_length_swa", head_dim());
    }
    u32("rope.dimension_count_swa", head_dim());
    u32("attention.shared_kv_layers", shared);
    u32("embedding_length_per_layer_input", number("hidden_size_per_layer_input", 0));
    copy_u32("top_k_experts", "expert_used_count");
  }

  /// The object of the whole model, or of layers of this kind.
  nlohmann::json rope(const char* kind) const {
    for (const char* key : {"rope_scaling", "rope_parameters"}) {
      if (!is(key)) continue;
      const nlohmann::json& all = config_[key];
      return all.contains(kind) ? all[kind] : all;
    }
    return nlohmann::json::object();
  }

  void put_rope() {
    const nlohmann::json full = rope("full_attention");
    const double theta = full.value("rope_theta", config_.value("rope_theta", 10000.0));
    f32("rope.freq_base", theta);
    const bool by_kind =
        is("rope_parameters") && config_["rope_parameters"].contains("sliding_attention");
    if (by_kind) f32("rope.freq_base_swa", rope("sliding_attention")["rope_theta"].get<double>());
    const std::string type = full.value("rope_type", full.value("type", "default"));
    if (type == "linear" || type == "yarn") {
      out_->text(architecture_ + ".rope.scaling.type", type);
      f32("rope.scaling.factor", full["factor"].get<double>());
    }
    if (type == "yarn") {
      u32("rope.scaling.original_context_length",
          full["original_max_position_embeddings"].get<std::int64_t>());
      if (full.contains("beta_fast"))
        f32("rope.scaling.yarn_beta_fast", full["beta_fast"].get<double>());
      if (full.contains("attention_factor")) {
        f32("rope.scaling.yarn_attn_factor", full["attention_factor"].get<double>());
      }
      if (full.contains("beta_slow"))
        f32("rope.scaling.yarn_beta_slow", full["beta_slow"].get<double>());
    }
    if (type_ == "ministral3") {
      f32("rope.scaling.yarn_log_multiplier", full["mscale_all_dim"].get<double>());
      f32("attention.temperature_scale", full["llama_4_scaling_beta"].get<double>());
    }
    if (type_ == "phi3") {
      u32("rope.scaling.original_context_length",
          config_["original_max_position_embeddings"].get<std::int64_t>());
    }
    if (type == "longrope") {
      const double length = config_["original_max_position_embeddings"].get<double>();
      const double scale = config_["max_position_embeddings"].get<double>() / length;
      f32("rope.scaling.attn_factor", std::sqrt(1 + std::log(scale) / std::log(length)));
    }
    put_rotated(full);
  }

  void put_rotated(const nlohmann::json& rope) {
    if (type_ == "gemma4_text") return u32("rope.dimension_count", wide("head_dim"));
    if (is_nemotron()) return u32("rope.dimension_count", dim() / heads());
    const bool hybrid = config_.contains("linear_num_key_heads");
    const double missing = hybrid ? 0.25 : type_.starts_with("glm4") ? 0.5 : 1.0;
    const double part =
        rope.value("partial_rotary_factor", config_.value("partial_rotary_factor", missing));
    const auto rotated = static_cast<std::int64_t>(part * static_cast<double>(head_dim()));
    u32("rope.dimension_count", number("rotary_dim", rotated));
    if (!rope.contains("mrope_section")) return;
    std::vector<std::int32_t> sections = rope["mrope_section"].get<std::vector<std::int32_t>>();
    sections.push_back(0);
    out_->i32s(architecture_ + ".rope.dimension_sections", sections);
  }

  void put_experts() {
    for (const char* key : {"num_experts", "num_local_experts", "n_routed_experts"}) {
      copy_u32(key, "expert_count");
    }
    copy_u32("num_experts_per_tok", "expert_used_count");
    copy_u32("moe_intermediate_size", "expert_feed_forward_length");
    copy_u32("shared_expert_intermediate_size", "expert_shared_feed_forward_length");
    copy_u32("moe_shared_expert_intermediate_size", "expert_shared_feed_forward_length");
    copy_u32("shared_intermediate_size", "expert_shared_feed_forward_length");
    copy_u32("n_shared_experts", "expert_shared_count");
    copy_u32("first_k_dense_replace", "leading_dense_block_count");
    copy_u32("n_group", "expert_group_count");
    copy_u32("topk_group", "expert_group_used_count");
    copy_f32("routed_scaling_factor", "expert_weights_scale");
    copy_f32("router_scaling_factor", "expert_weights_scale");
    copy_u32("interleave_moe_layer_step", "interleave_moe_layer_step");
    if (type_ == "minimax_m2" || type_ == "gpt_oss" || type_ == "llama4_text") {
      copy_u32("intermediate_size", "expert_feed_forward_length");
    }
    if (type_ == "glm4_moe" || type_ == "hy_v3" || type_ == "lfm2_moe") {
      u32("expert_gating_func", 2);
    }
    copy_u32("num_dense_layers", "leading_dense_block_count");
    if (type_ == "glm4_moe" || architecture_ == "nemotron_h_moe") {
      out_->boolean(architecture_ + ".expert_weights_norm", config_["norm_topk_prob"].get<bool>());
    }
    if (type_ == "hy_v3") {
      out_->boolean(architecture_ + ".expert_weights_norm", true);
      u32("expert_shared_feed_forward_length",
          number("moe_intermediate_size", 0) * number("num_shared_experts", 1));
    }
  }

  void put_mamba() {
    const std::int64_t heads = number("mamba_num_heads", number("mamba_n_heads", 0));
    u32("ssm.conv_kernel", number("conv_kernel", number("mamba_d_conv", 0)));
    u32("ssm.state_size", number("ssm_state_size", number("mamba_d_state", 0)));
    u32("ssm.group_count", number("n_groups", number("mamba_n_groups", 0)));
    u32("ssm.inner_size", number("mamba_head_dim", number("mamba_d_head", 0)) * heads);
    u32("ssm.time_step_rank", heads);
    out_->boolean(architecture_ + ".rope.scaling.finetuned", false);
  }

  void put_delta_net() {
    u32("ssm.conv_kernel", number("linear_conv_kernel_dim", 0));
    u32("ssm.state_size", number("linear_key_head_dim", 0));
    u32("ssm.group_count", number("linear_num_key_heads", 0));
    u32("ssm.time_step_rank", number("linear_num_value_heads", 0));
    u32("ssm.inner_size", number("linear_value_head_dim", 0) * number("linear_num_value_heads", 0));
    u32("full_attention_interval", number("full_attention_interval", 4));
    std::vector<bool> recurrent;
    for (const auto& type : config_["layer_types"]) recurrent.push_back(type == "linear_attention");
    flags("attention.recurrent_layers", recurrent);
  }

  /// Gemma's converter leaves which layers they are to who reads; ours says it where it is said.
  void put_windows() {
    if (!is("sliding_window") || type_.starts_with("qwen")) return;
    u32("attention.sliding_window", config_["sliding_window"].get<std::int64_t>());
    std::vector<bool> sliding;
    if (is("layer_types")) {
      for (const auto& type : config_["layer_types"]) {
        sliding.push_back(type == "sliding_attention");
      }
    } else if (type_ == "olmo3" || type_ == "exaone4") {
      for (std::int64_t i = 0; i < layers(); ++i) sliding.push_back((i + 1) % 4 != 0);
    }
    if (!sliding.empty()) flags("attention.sliding_window_pattern", sliding);
  }

  void put_numbers() {
    copy_f32("attn_logit_softcapping", "attn_logit_softcapping");
    copy_f32("final_logit_softcapping", "final_logit_softcapping");
    copy_f32("attention_multiplier", "attention.scale");
    copy_f32("embedding_multiplier", "embedding_scale");
    copy_f32("residual_multiplier", "residual_scale");
    copy_f32("logits_scaling", "logit_scale");
  }

  nlohmann::json config_;
  std::string type_;
  std::string architecture_;
  GgufWriter* out_ = nullptr;
};

}  // namespace dendrite::test
