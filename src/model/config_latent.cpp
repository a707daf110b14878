#include "model/config_latent.h"

#include <cmath>

#include "backend/attention_plan.h"
#include "model/config_experts.h"
#include "model/config_rope.h"

namespace dendrite {
namespace {

constexpr IntRange kDim{1, 1024};
constexpr IntRange kRank{1, 1 << 16};

}  // namespace

void read_latent(const JsonObject& json, const LatentSizes& missing, double theta,
                 DecoderConfig& config) {
  LatentSizes sizes;
  sizes.rank = json.int_or("kv_lora_rank", missing.rank, kRank);
  sizes.query_rank = json.contains("q_lora_rank") ? json.find_int("q_lora_rank", kRank).value_or(0)
                                                  : missing.query_rank;
  sizes.plain_dim = json.int_or("qk_nope_head_dim", missing.plain_dim, kDim);
  sizes.rotary_dim = json.int_or("qk_rope_head_dim", missing.rotary_dim, kDim);
  sizes.value_dim = json.int_or("v_head_dim", missing.value_dim, kDim);
  if (sizes.rotary_dim % 2 != 0) json.fail("qk_rope_head_dim", "an even number");
  if (sizes.kept_dim() > kMaxHeadDim) {  // as one head of which it is kept
    json.fail("kv_lora_rank", "with qk_rope_head_dim at most " + std::to_string(kMaxHeadDim));
  }
  config.attention_bias = json.bool_or("attention_bias", false);
  if (config.attention_bias && sizes.query_rank == 0) {
    json.fail("attention_bias", "false where q_lora_rank is null");
  }
  config.kv_heads = 1;
  config.head_dim = sizes.kept_dim();
  config.rotary_dim = sizes.rotary_dim;
  config.rope = read_rope(json, config.max_positions, sizes.query_dim(), sizes.rotary_dim, theta);
  config.attention_scale = 1 / std::sqrt(static_cast<float>(sizes.query_dim()));
  if (config.rope.type != RopeType::kDefault && config.rope.mscale_all_dim != 0 &&
      config.rope.factor > 1) {
    const double scale = 0.1 * config.rope.mscale_all_dim * std::log(config.rope.factor) + 1;
    config.attention_scale *= static_cast<float>(scale * scale);
  }
  config.rope_pairs = json.find_bool("rope_interleave").value_or(true);
  config.latent = sizes;
}

void read_deepseek_v2(const JsonObject& json, DecoderConfig& config) {
  read_latent(json, {512, 1536, 128, 64, 128}, 10000, config);
  const std::string method = json.find_string("topk_method").value_or("greedy");
  if (method != "greedy") {
    json.fail("topk_method", "\"greedy\" (groups by their best expert are not supported)");
  }
  read_routed_experts(json,
                      {.experts = 64,
                       .chosen = 6,
                       .ffn_dim = 1407,
                       .shared = 2,
                       .normalised = false,
                       .score = RouterScore::kSoftmax},
                      config);
  if (!config.experts) return;
  Routing& routing = config.experts->routing;
  routing.normalised = false;  // whatever the file says
  routing.groups = routing.chosen_groups = 1;
}

void read_deepseek_v3(const JsonObject& json, DecoderConfig& config) {
  read_latent(json, {512, 1536, 128, 64, 128}, 10000, config);
  read_routed_experts(json,
                      {.experts = 256,
                       .chosen = 8,
                       .ffn_dim = 2048,
                       .dense = 3,
                       .scale = 2.5,
                       .groups = 8,
                       .chosen_groups = 4},
                      config);
}

void read_glm4_moe_lite(const JsonObject& json, DecoderConfig& config) {
  read_latent(json, {512, 768, 192, 64, 256}, 10000, config);
  read_routed_experts(json, {.experts = 64, .chosen = 4, .ffn_dim = 1536, .dense = 1, .scale = 1.8},
                      config);
}

void read_mistral4(const JsonObject& json, DecoderConfig& config) {
  read_latent(json, {256, 1024, 64, 64, 128}, 10000, config);
  config.query_growth = read_query_growth(json);
  read_routed_experts(
      json, {.experts = 128, .chosen = 4, .ffn_dim = 2048, .score = RouterScore::kSoftmax}, config);
}

}  // namespace dendrite
