// Families some layers of which see a window.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>
#include <vector>

#include "dendrite/error.h"
#include "io/gguf_readers.h"
#include "quant/formats.h"

namespace dendrite {
namespace {

using Json = GgufJson;

constexpr const char* kWindow = "attention.sliding_window";
constexpr float kStands = 1e20F;  // angles divided by more are 0
constexpr const char* kPattern = "attention.sliding_window_pattern";

/// Which layers see a window: as the file says, or all but every so many-th, `step` where it says
/// nothing.
void add_windows(const GgufSource& source, std::int64_t window, std::int64_t step, Json& config) {
  std::optional<std::vector<bool>> flags;
  if (source.keys.is_array(kPattern)) {
    flags = source.keys.find_flags(kPattern, source.layers);
  } else {
    step = source.keys.find_int(kPattern).value_or(step);
  }
  Json types = Json::array();
  for (std::int64_t i = 0; i < source.layers; ++i) {
    const bool slides =
        flags ? (*flags)[static_cast<std::size_t>(i)] : step == 0 || (i + 1) % step != 0;
    types.push_back(slides && window > 0 ? "sliding_attention" : "full_attention");
  }
  config["layer_types"] = std::move(types);
  config["sliding_window"] = window > 0 ? Json(window) : Json();
}

/// RoPE of layers with a window, which is never stretched, beside that of the others.
void part_ropes(const GgufSource& source, double missing, Json& config) {
  const double theta = source.keys.find_number("rope.freq_base_swa").value_or(missing);
  Json full = std::move(config["rope_parameters"]);
  config["rope_parameters"] = {
      {"full_attention", std::move(full)},
      {"sliding_attention", {{"rope_theta", theta}, {"rope_type", "default"}}}};
}

/// What scores are divided by is not said: by the root of a head's size, but in the largest model
/// of either generation, which is known by its layers.
double scalar_of(const GgufSource& source, std::int64_t largest, const Json& config) {
  if (source.layers != largest) return config["head_dim"].get<double>();
  return static_cast<double>(config["hidden_size"].get<std::int64_t>() /
                             config["num_attention_heads"].get<std::int64_t>());
}

}  // namespace

void gguf_gemma2(const GgufSource& source, Json& config) {
  config["query_pre_attn_scalar"] = scalar_of(source, 46, config);
  config["attn_logit_softcapping"] = source.keys.require_number("attn_logit_softcapping");
  config["final_logit_softcapping"] = source.keys.require_number("final_logit_softcapping");
  add_windows(source, source.keys.require_int(kWindow), 2, config);
}

void gguf_gemma3(const GgufSource& source, Json& config) {
  config["query_pre_attn_scalar"] = scalar_of(source, 62, config);
  const double cap = source.keys.find_number("final_logit_softcapping").value_or(0);
  config["final_logit_softcapping"] = cap == 0 ? Json() : Json(cap);
  add_windows(source, source.keys.find_int(kWindow).value_or(0), 6, config);
  part_ropes(source, 10000, config);
}

/// Full layers turn a part of their angles: the others are divided by much, in a tensor.
Json proportional_rope(const GgufSource& source, const Json& config) {
  constexpr const char* kFactors = "rope_freqs.weight";
  Json rope = config["rope_parameters"];
  const TensorInfo* const tensor = source.find(kFactors);
  if (tensor == nullptr) return rope;
  const std::vector<float> factors = numbers_of(*tensor);
  const auto turned = std::ranges::find_if(factors, [](float by) { return by != 1; });
  const auto count = turned - factors.begin();
  const bool rest_stands =
      std::all_of(turned, factors.end(), [](float by) { return by >= kStands; });
  if (count == 0 || !rest_stands) {
    throw Error(std::string(tensor->file) + ": tensor " + in_quotes(kFactors) +
                " divides angles in another way than all behind the first ones by 1e30, expected "
                "that of Gemma 4");
  }
  rope["rope_type"] = "proportional";
  rope["partial_rotary_factor"] = static_cast<double>(count) / static_cast<double>(factors.size());
  return rope;
}

void gguf_gemma4(const GgufSource& source, Json& config) {
  const GgufKeys& keys = source.keys;
  add_windows(source, keys.require_int(kWindow), 6, config);
  const Json& types = config["layer_types"];
  const auto is_full = [&](std::int64_t layer) {
    return types[static_cast<std::size_t>(layer)] == "full_attention";
  };
  const std::int64_t shared = keys.find_int("attention.shared_kv_layers").value_or(0);
  if (shared >= source.layers) keys.fail("attention.shared_kv_layers", "less than all layers");

  config["global_head_dim"] = config["head_dim"];
  config["head_dim"] = keys.require_int("attention.key_length_swa");
  for (const char* key : {"attention.value_length_swa", "rope.dimension_count_swa"}) {
    if (keys.find_int(key).value_or(config["head_dim"]) != config["head_dim"]) {
      keys.fail(key, "attention.key_length_swa, " + config["head_dim"].dump());
    }
  }
  const auto heads = keys.require_each("attention.head_count_kv", source.layers);
  bool keys_are_values = false;
  for (std::int64_t i = 0; i < source.layers; ++i) {
    const char* const kind = is_full(i) ? "num_global_key_value_heads" : "num_key_value_heads";
    const std::int64_t count = heads[static_cast<std::size_t>(i)];
    if (config.contains(kind) && config[kind] != count) {
      keys.fail("attention.head_count_kv", "one number for each kind of layers");
    }
    config[kind] = count;
    if (is_full(i) && i < source.layers - shared && !source.has(i, "attn_v.weight")) {
      keys_are_values = true;
    }
  }
  if (!config.contains("num_key_value_heads")) config["num_key_value_heads"] = heads.front();
  config["attention_k_eq_v"] = keys_are_values;

  const auto widths = keys.require_each("feed_forward_length", source.layers);
  config["intermediate_size"] = widths.front();
  config["num_kv_shared_layers"] = shared;
  config["use_double_wide_mlp"] = shared > 0 && widths.back() == 2 * widths.front();
  for (std::int64_t i = 0; i < source.layers; ++i) {
    const bool wide = config["use_double_wide_mlp"] == true && i >= source.layers - shared;
    if (widths[static_cast<std::size_t>(i)] != (wide ? 2 : 1) * widths.front()) {
      keys.fail("feed_forward_length",
                "the same for layers with K and V of their own, and that or "
                "twice that for the others");
    }
  }
  const double cap = keys.find_number("final_logit_softcapping").value_or(0);
  config["final_logit_softcapping"] = cap == 0 ? Json() : Json(cap);
  const char* const kInputs = "embedding_length_per_layer_input";
  config["hidden_size_per_layer_input"] = keys.find_int(kInputs).value_or(0);
  const TensorInfo* const table = source.find("per_layer_token_embd.weight");
  if (table != nullptr && table->shape.size() == 2) {
    config["vocab_size_per_layer_input"] = table->shape[0];
  }
  const auto experts = keys.find_int("expert_count").value_or(0);
  config["enable_moe_block"] = experts > 0;
  if (experts > 0) {
    config["num_experts"] = experts;
    config["top_k_experts"] = keys.require_int("expert_used_count");
    config["moe_intermediate_size"] = keys.require_int("expert_feed_forward_length");
  }
  config["rope_parameters"] = proportional_rope(source, config);
  part_ropes(source, 10000, config);
}

void gguf_olmo2(const GgufSource& source, Json& config) {
  const std::int64_t window = source.keys.find_int(kWindow).value_or(0);
  if (window == 0) return;
  config["model_type"] = "olmo3";
  add_windows(source, window, 4, config);
  part_ropes(source, config["rope_parameters"]["rope_theta"].get<double>(), config);
}

void gguf_exaone4(const GgufSource& source, Json& config) {
  const std::int64_t window = source.keys.find_int(kWindow).value_or(0);
  config["sliding_window"] = nullptr;
  if (window > 0) add_windows(source, window, 4, config);
}

void gguf_gpt_oss(const GgufSource& source, Json& config) {
  config["intermediate_size"] = source.keys.require_int("expert_feed_forward_length");
  config["num_local_experts"] = source.keys.require_int("expert_count");
  config["num_experts_per_tok"] = source.keys.require_int("expert_used_count");
  const std::int64_t gating = source.keys.find_int("expert_gating_func").value_or(3);
  if (gating != 1 && gating != 3) {  // which are the same where the chosen are divided by their sum
    source.keys.fail("expert_gating_func", "3, a softmax of the chosen");
  }
  add_windows(source, source.keys.require_int(kWindow), 2, config);
  config["rope_parameters"]["truncate"] = false;  // of YaRN; which is not said
}

}  // namespace dendrite
