#include <cmath>
#include <nlohmann/json.hpp>

#include "io/gguf_readers.h"
#include "quant/formats.h"

namespace dendrite {
namespace {

using Json = GgufJson;

/// Of all layers; 0: none.
Json window_of(const GgufSource& source) {
  const auto window = source.keys.find_int("attention.sliding_window").value_or(0);
  return window == 0 ? Json() : Json(window);
}

bool has_biases(const Json& config) {
  return config["attention_bias"] == true || config["mlp_bias"] == true;
}

/// Granite 4's hybrids share these keys with its dense models, where they say nothing new.
void skip_hybrid_keys(const GgufSource& source) {
  for (const char* key : {"ssm.inner_size", "ssm.conv_kernel", "ssm.state_size", "ssm.group_count",
                          "ssm.time_step_rank"}) {
    source.keys.skip(key);
  }
  const char* const kShared = "expert_shared_feed_forward_length";
  const std::int64_t width = source.keys.require_of_layers("feed_forward_length");
  if (source.keys.find_int(kShared).value_or(width) != width) {
    source.keys.fail(kShared, std::to_string(width) + ", as feed_forward_length says");
  }
}

}  // namespace

void gguf_llama(const GgufSource& source, Json& config) {
  const std::int64_t experts = source.keys.find_int("expert_count").value_or(0);
  const auto chosen = source.keys.find_int("expert_used_count");
  const Json window = window_of(source);
  if (experts == 0 && window.is_null()) return;
  if (has_biases(config)) {
    source.keys.fail(experts == 0 ? "attention.sliding_window" : "expert_count",
                     "none in a model with biases (it is not supported)");
  }
  config["model_type"] = experts == 0 ? "mistral" : "mixtral";
  config["sliding_window"] = window;
  if (experts == 0) return;
  if (!chosen) source.keys.fail("expert_used_count", "an integer");
  config["intermediate_size"] = source.keys.require_of_layers("feed_forward_length");
  config["num_local_experts"] = experts;
  config["num_experts_per_tok"] = *chosen;
}

void gguf_mistral3(const GgufSource& source, Json& config) {
  config["sliding_window"] = nullptr;
  Json& rope = config["rope_parameters"];
  const char* const kMultiplier = "rope.scaling.yarn_log_multiplier";
  if (const double all = source.keys.find_number(kMultiplier).value_or(0); all != 0) {
    rope["mscale"] = 1.0;  // as is meant where a file says the other one
    rope["mscale_all_dim"] = all;
  }
  const double growth = source.keys.find_number("attention.temperature_scale").value_or(0);
  if (growth == 0) return;
  config["model_type"] = "ministral3";
  rope["llama_4_scaling_beta"] = growth;
  rope["original_max_position_embeddings"] =
      source.keys.require_int("rope.scaling.original_context_length");
}

void gguf_phi3(const GgufSource& source, Json& config) {
  config["sliding_window"] = window_of(source);
  if (const auto length = source.keys.find_int("rope.scaling.original_context_length")) {
    config["original_max_position_embeddings"] = *length;
  }
  const TensorInfo* const factors = source.find("rope_factors_short.weight");
  if (factors == nullptr) return;
  Json& rope = config["rope_parameters"];
  rope["rope_type"] = "longrope";
  rope["short_factor"] = numbers_of(*factors);
  if (const auto factor = source.keys.find_number("rope.scaling.attn_factor")) {
    rope["attention_factor"] = *factor;
  }
}

bool gguf_granite_rotates(const GgufSource& source) {
  return source.keys.find_bool("rope.scaling.finetuned").value_or(true);
}

void gguf_granite_factors(const GgufSource& source, Json& config) {
  const double head_dim = config["head_dim"].get<double>();
  config["attention_multiplier"] =
      source.keys.find_number("attention.scale").value_or(1 / std::sqrt(head_dim));
  config["embedding_multiplier"] = source.keys.find_number("embedding_scale").value_or(1);
  config["residual_multiplier"] = source.keys.find_number("residual_scale").value_or(1);
  config["logits_scaling"] = source.keys.require_number("logit_scale");
}

void gguf_granite_rotated(const GgufSource& source, Json& config) {
  if (!gguf_granite_rotates(source)) {
    source.keys.fail("rope.scaling.finetuned", "true (attention without RoPE is not supported)");
  }
  gguf_granite_factors(source, config);
}

void gguf_granite(const GgufSource& source, Json& config) {
  skip_hybrid_keys(source);
  gguf_granite_rotated(source, config);
}

/// Which layers have no RoPE is not said: every fourth one.
void gguf_smollm3(const GgufSource&, Json& config) {
  config["no_rope_layer_interval"] = 4;
  config["use_sliding_window"] = false;
}

void gguf_glm4(const GgufSource& source, Json& config) {
  config["attention_bias"] = source.any_ends_with(".attn_q.bias");
}

void gguf_seed_oss(const GgufSource& source, Json& config) {
  config["attention_bias"] = source.any_ends_with(".attn_q.bias");
  config["attention_out_bias"] = source.any_ends_with(".attn_output.bias");
}

void gguf_ernie4_5(const GgufSource&, Json& config) {
  config["use_bias"] = has_biases(config);
}

}  // namespace dendrite
