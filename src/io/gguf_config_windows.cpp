// Families some layers of which see a window.
#include <nlohmann/json.hpp>
#include <utility>

#include "io/gguf_readers.h"

namespace dendrite {
namespace {

using Json = GgufJson;

constexpr const char* kWindow = "attention.sliding_window";
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
