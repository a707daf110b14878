// Families some layers of which are Mamba-2.
#include <nlohmann/json.hpp>

#include "io/gguf_readers.h"

namespace dendrite {
namespace {

using Json = GgufJson;

struct MambaKeys {
  std::int64_t heads = 0;
  std::int64_t head_dim = 0;
};

/// Throws Error naming the key.
MambaKeys mamba_of(const GgufSource& source) {
  const std::int64_t heads = source.keys.require_int("ssm.time_step_rank");
  const std::int64_t width = source.keys.require_int("ssm.inner_size");
  if (heads < 1 || width < 1 || width % heads != 0) {
    source.keys.fail("ssm.inner_size", "a multiple of ssm.time_step_rank, the heads");
  }
  return {heads, width / heads};
}

}  // namespace

/// What dt is held within no file says: all models of the family leave it as it is.
void gguf_granite_hybrid(const GgufSource& source, Json& config) {
  gguf_granite_factors(source, config);
  const GgufKeys& keys = source.keys;
  config["position_embedding_type"] = gguf_granite_rotates(source) ? "rope" : "nope";
  const MambaKeys mamba = mamba_of(source);
  const auto dim = config["hidden_size"].get<std::int64_t>();
  const std::int64_t width = mamba.heads * mamba.head_dim;
  if (width % dim != 0) keys.fail("ssm.inner_size", "a multiple of embedding_length");
  config["mamba_n_heads"] = mamba.heads;
  config["mamba_d_head"] = mamba.head_dim;
  config["mamba_expand"] = width / dim;
  config["mamba_n_groups"] = keys.require_int("ssm.group_count");
  config["mamba_d_state"] = keys.require_int("ssm.state_size");
  config["mamba_d_conv"] = keys.require_int("ssm.conv_kernel");
  config["mamba_proj_bias"] = source.any_ends_with(".ssm_in.bias");
  config["mamba_conv_bias"] = source.any_ends_with(".ssm_conv1d.bias");
  Json types = Json::array();
  for (std::int64_t i = 0; i < source.layers; ++i) {
    types.push_back(source.has(i, "ssm_in.weight") ? "mamba" : "attention");
  }
  config["layer_types"] = std::move(types);
  config["shared_intermediate_size"] = keys.require_int("expert_shared_feed_forward_length");
  config["num_local_experts"] = keys.find_int("expert_count").value_or(0);
  if (config["num_local_experts"] != 0) {
    config["num_experts_per_tok"] = keys.require_int("expert_used_count");
  }
}

/// That dt is held above a thousandth no file says: it is in all models of the family.
void gguf_nemotron_h(const GgufSource& source, Json& config) {
  const GgufKeys& keys = source.keys;
  const MambaKeys mamba = mamba_of(source);
  config["mamba_num_heads"] = mamba.heads;
  config["mamba_head_dim"] = mamba.head_dim;
  config["n_groups"] = keys.require_int("ssm.group_count");
  config["ssm_state_size"] = keys.require_int("ssm.state_size");
  config["conv_kernel"] = keys.require_int("ssm.conv_kernel");
  config["use_bias"] = source.any_ends_with(".ssm_in.bias");
  config["use_conv_bias"] = source.any_ends_with(".ssm_conv1d.bias");
  config["mlp_bias"] = source.any_ends_with(".ffn_up.bias");
  config["layer_norm_epsilon"] = config["rms_norm_eps"];
  Json types = Json::array();
  for (std::int64_t i = 0; i < source.layers; ++i) {
    types.push_back(source.has(i, "ssm_in.weight")        ? "mamba"
                    : source.has(i, "attn_q.weight")      ? "attention"
                    : source.has(i, "ffn_up_exps.weight") ? "moe"
                                                          : "mlp");
  }
  config["layers_block_type"] = std::move(types);
  const std::int64_t experts = keys.find_int("expert_count").value_or(0);
  if (experts == 0) return;
  if (keys.find_int("expert_gating_func").value_or(2) != 2) {
    keys.fail("expert_gating_func", "2, sigmoids (others are not supported here)");
  }
  if (keys.find_int("expert_shared_count").value_or(1) != 1) {
    keys.fail("expert_shared_count", "1 (others are not supported here)");
  }
  config["n_routed_experts"] = experts;
  config["num_experts_per_tok"] = keys.require_int("expert_used_count");
  config["moe_intermediate_size"] = keys.require_int("expert_feed_forward_length");
  config["moe_shared_expert_intermediate_size"] =
      keys.require_int("expert_shared_feed_forward_length");
  config["norm_topk_prob"] = keys.find_bool("expert_weights_norm").value_or(true);
  config["routed_scaling_factor"] = keys.find_number("expert_weights_scale").value_or(1);
  config["n_group"] = keys.find_int("expert_group_count").value_or(1);
  config["topk_group"] = keys.find_int("expert_group_used_count").value_or(1);
  if (keys.find_int("moe_latent_size").value_or(0) != 0) {
    keys.fail("moe_latent_size", "none (experts in a latent are not supported)");
  }
}

}  // namespace dendrite
