#include "model/config_llama4.h"

#include "model/config_experts.h"
#include "model/config_rope.h"
#include "model/config_windows.h"

namespace dendrite {
namespace {

constexpr double kTheta = 5e5;
constexpr IntRange kLengths{1, std::int64_t{1} << 30};

}  // namespace

void read_llama4(const JsonObject& json, DecoderConfig& config) {
  config.attention_bias = config.attention_out_bias = json.bool_or("attention_bias", false);
  config.mlp_names.block = "feed_forward.";
  config.unrotated = read_unrotated(json, config.layers);
  set_chunks(json, config);
  config.rope_pairs = true;
  config.rope = read_rope(json, config.max_positions, config.head_dim, config.rotary_dim, kTheta);
  config.qk_norm_plain = json.bool_or("use_qk_norm", true);
  if (config.qk_norm_plain && attention_scaling(config.rope) != 1) {
    json.fail("use_qk_norm", "false where RoPE scales what it turns, which the norm takes back");
  }
  const char* const tuning = "attn_temperature_tuning";  // true, or a number in older files
  if (!json.contains(tuning) || json.says(tuning)) {
    config.query_growth = {.beta = json.number_or("attn_scale", 0.1, {0.0, 1e6}),
                           .length = json.int_or("floor_scale", 8192, kLengths),
                           .ahead = 1,
                           .unrotated = true};
  }
  read_llama4_experts(json, config);
}

}  // namespace dendrite
