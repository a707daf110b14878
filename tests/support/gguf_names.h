#pragma once

#include <map>
#include <stdexcept>
#include <string>

namespace dendrite::test {

/// What llama.cpp's converter calls the tensors of a layer, by the names that a folder of a family
/// has: less what stands behind the last dot, where that is "weight" or "bias".
inline std::string gguf_part_of(const std::string& model_type, const std::string& part) {
  using Names = std::map<std::string, std::string>;
  static const Names kShared{{"input_layernorm", "attn_norm"},
                             {"self_attn.q_proj", "attn_q"},
                             {"self_attn.k_proj", "attn_k"},
                             {"self_attn.v_proj", "attn_v"},
                             {"self_attn.qkv_proj", "attn_qkv"},
                             {"self_attn.o_proj", "attn_output"},
                             {"self_attn.q_norm", "attn_q_norm"},
                             {"self_attn.k_norm", "attn_k_norm"},
                             {"self_attn.sinks", "attn_sinks.weight"},
                             {"post_attention_layernorm", "ffn_norm"},
                             {"mlp.gate_proj", "ffn_gate"},
                             {"mlp.up_proj", "ffn_up"},
                             {"mlp.gate_up_proj", "ffn_up"},
                             {"mlp.down_proj", "ffn_down"},
                             {"mlp.gate", "ffn_gate_inp"},
                             {"mlp.router", "ffn_gate_inp"},
                             {"mlp.router.gate", "ffn_gate_inp"},
                             {"block_sparse_moe.gate", "ffn_gate_inp"},
                             {"block_sparse_moe.router.layer", "ffn_gate_inp"},
                             {"mlp.experts.gate_proj", "ffn_gate_exps"},
                             {"mlp.experts.up_proj", "ffn_up_exps"},
                             {"mlp.experts.down_proj", "ffn_down_exps"},
                             {"block_sparse_moe.experts.w1", "ffn_gate_exps"},
                             {"block_sparse_moe.experts.w3", "ffn_up_exps"},
                             {"block_sparse_moe.experts.w2", "ffn_down_exps"},
                             {"block_sparse_moe.output_linear", "ffn_down_exps"},
                             {"mlp.shared_expert_gate", "ffn_gate_inp_shexp"},
                             {"mlp.shared_expert.gate_proj", "ffn_gate_shexp"},
                             {"mlp.shared_expert.up_proj", "ffn_up_shexp"},
                             {"mlp.shared_expert.down_proj", "ffn_down_shexp"},
                             {"mlp.shared_experts.gate_proj", "ffn_gate_shexp"},
                             {"mlp.shared_experts.up_proj", "ffn_up_shexp"},
                             {"mlp.shared_experts.down_proj", "ffn_down_shexp"},
                             {"mlp.shared_mlp.gate_proj", "ffn_gate_shexp"},
                             {"mlp.shared_mlp.up_proj", "ffn_up_shexp"},
                             {"mlp.shared_mlp.down_proj", "ffn_down_shexp"},
                             {"mlp.gate.e_score_correction_bias", "exp_probs_b.bias"},
                             {"block_sparse_moe.e_score_correction_bias", "exp_probs_b.bias"},
                             {"mlp.expert_bias", "exp_probs_b"},
                             {"linear_attn.in_proj_qkv", "attn_qkv"},
                             {"linear_attn.in_proj_z", "attn_gate"},
                             {"linear_attn.in_proj_b", "ssm_beta"},
                             {"linear_attn.in_proj_a", "ssm_alpha"},
                             {"linear_attn.in_proj_ba", "ssm_ba"},
                             {"linear_attn.out_proj", "ssm_out"},
                             {"linear_attn.norm", "ssm_norm"},
                             {"linear_attn.conv1d", "ssm_conv1d"},
                             {"linear_attn.dt_bias", "ssm_dt.bias"},
                             {"linear_attn.A_log", "ssm_a"},
                             {"operator_norm", "attn_norm"},
                             {"ffn_norm", "ffn_norm"},
                             {"self_attn.out_proj", "attn_output"},
                             {"self_attn.q_layernorm", "attn_q_norm"},
                             {"self_attn.k_layernorm", "attn_k_norm"},
                             {"feed_forward.w1", "ffn_gate"},
                             {"feed_forward.w3", "ffn_up"},
                             {"feed_forward.w2", "ffn_down"},
                             {"feed_forward.gate", "ffn_gate_inp"},
                             {"feed_forward.expert_bias", "exp_probs_b.bias"},
                             {"feed_forward.experts.w1", "ffn_gate_exps"},
                             {"feed_forward.experts.w3", "ffn_up_exps"},
                             {"feed_forward.experts.w2", "ffn_down_exps"},
                             {"conv.conv", "shortconv.conv"},
                             {"conv.in_proj", "shortconv.in_proj"},
                             {"conv.out_proj", "shortconv.out_proj"},
                             {"eh_proj", "nextn.eh_proj"},
                             {"enorm", "nextn.enorm"},
                             {"hnorm", "nextn.hnorm"}};
  static const Names kGemma4{{"post_attention_layernorm", "post_attention_norm"},
                             {"pre_feedforward_layernorm", "ffn_norm"},
                             {"post_feedforward_layernorm", "post_ffw_norm"},
                             {"post_feedforward_layernorm_1", "post_ffw_norm_1"},
                             {"pre_feedforward_layernorm_2", "pre_ffw_norm_2"},
                             {"post_feedforward_layernorm_2", "post_ffw_norm_2"},
                             {"router.proj", "ffn_gate_inp"},
                             {"router.scale", "ffn_gate_inp.scale"},
                             {"router.per_expert_scale", "ffn_down_exps.scale"},
                             {"experts.gate_up_proj", "ffn_gate_up_exps"},
                             {"experts.down_proj", "ffn_down_exps"},
                             {"layer_scalar", "layer_output_scale.weight"},
                             {"per_layer_input_gate", "inp_gate"},
                             {"per_layer_projection", "proj"},
                             {"post_per_layer_input_norm", "post_norm"}};
  static const Names kGemma{{"post_attention_layernorm", "post_attention_norm"},
                            {"pre_feedforward_layernorm", "ffn_norm"},
                            {"post_feedforward_layernorm", "post_ffw_norm"}};
  static const Names kGlm4{{"post_self_attn_layernorm", "post_attention_norm"},
                           {"post_mlp_layernorm", "post_ffw_norm"}};
  static const Names kByPlace{{"post_attention_layernorm", "post_attention_norm"}};
  static const std::map<std::string, const Names*> kOwn{{"gemma2", &kGemma},
                                                        {"gemma3_text", &kGemma},
                                                        {"gemma4_text", &kGemma4},
                                                        {"olmo2", &kGemma},
                                                        {"olmo3", &kGemma},
                                                        {"exaone4", &kGemma},
                                                        {"glm4", &kGlm4},
                                                        {"glm4_moe", &kByPlace},
                                                        {"seed_oss", &kByPlace},
                                                        {"gpt_oss", &kByPlace},
                                                        {"qwen3_next", &kByPlace},
                                                        {"qwen3_5_text", &kByPlace},
                                                        {"qwen3_5_moe_text", &kByPlace}};
  const auto own = kOwn.find(model_type);
  if (own != kOwn.end() && own->second->contains(part)) return own->second->at(part);
  const auto shared = kShared.find(part);
  if (shared == kShared.end()) throw std::out_of_range("no GGUF name of " + part);
  return shared->second;
}

}  // namespace dendrite::test
