#include <algorithm>

#include "dendrite/error.h"
#include "io/gguf_family.h"
#include "io/gguf_readers.h"

namespace dendrite {
namespace {

// --- names that families share

constexpr GgufName kNorms[] = {{"attn_norm", "input_layernorm"},
                               {"ffn_norm", "post_attention_layernorm"}};
constexpr GgufName kNormsByPlace[] = {{"attn_norm", "input_layernorm"},
                                      {"post_attention_norm", "post_attention_layernorm"}};
constexpr GgufName kNormsBehind[] = {{"post_attention_norm", "post_attention_layernorm"},
                                     {"post_ffw_norm", "post_feedforward_layernorm"}};
constexpr GgufName kGemmaNorms[] = {{"attn_norm", "input_layernorm"},
                                    {"post_attention_norm", "post_attention_layernorm"},
                                    {"ffn_norm", "pre_feedforward_layernorm"},
                                    {"post_ffw_norm", "post_feedforward_layernorm"}};
constexpr GgufName kGlmNorms[] = {{"attn_norm", "input_layernorm"},
                                  {"post_attention_norm", "post_self_attn_layernorm"},
                                  {"ffn_norm", "post_attention_layernorm"},
                                  {"post_ffw_norm", "post_mlp_layernorm"}};

constexpr GgufName kAttention[] = {{"attn_q", "self_attn.q_proj", true},
                                   {"attn_k", "self_attn.k_proj", true},
                                   {"attn_v", "self_attn.v_proj", true},
                                   {"attn_output", "self_attn.o_proj", true}};
constexpr GgufName kAttentionBiasedIn[] = {{"attn_q", "self_attn.q_proj", true},
                                           {"attn_k", "self_attn.k_proj", true},
                                           {"attn_v", "self_attn.v_proj", true},
                                           {"attn_output", "self_attn.o_proj"}};
constexpr GgufName kAttentionPlain[] = {{"attn_q", "self_attn.q_proj"},
                                        {"attn_k", "self_attn.k_proj"},
                                        {"attn_v", "self_attn.v_proj"},
                                        {"attn_output", "self_attn.o_proj"}};
constexpr GgufName kAttentionFused[] = {{"attn_qkv", "self_attn.qkv_proj"},
                                        {"attn_output", "self_attn.o_proj"}};
constexpr GgufName kHeadNorms[] = {{"attn_q_norm", "self_attn.q_norm"},
                                   {"attn_k_norm", "self_attn.k_norm"}};

constexpr GgufName kMlp[] = {
    {"ffn_gate", "mlp.gate_proj"}, {"ffn_up", "mlp.up_proj"}, {"ffn_down", "mlp.down_proj"}};
constexpr GgufName kMlpBiased[] = {{"ffn_gate", "mlp.gate_proj", true},
                                   {"ffn_up", "mlp.up_proj", true},
                                   {"ffn_down", "mlp.down_proj", true}};
constexpr GgufName kMlpFused[] = {{"ffn_up", "mlp.gate_up_proj"}, {"ffn_down", "mlp.down_proj"}};

// Of all experts of a layer.
constexpr GgufName kExperts[] = {{"ffn_gate_exps", "mlp.experts.gate_proj"},
                                 {"ffn_up_exps", "mlp.experts.up_proj"},
                                 {"ffn_down_exps", "mlp.experts.down_proj"}};
constexpr GgufName kSparseExperts[] = {{"ffn_gate_exps", "block_sparse_moe.experts.gate_proj"},
                                       {"ffn_up_exps", "block_sparse_moe.experts.up_proj"},
                                       {"ffn_down_exps", "block_sparse_moe.experts.down_proj"}};
constexpr GgufName kRouter[] = {{"ffn_gate_inp", "mlp.gate"}};
constexpr GgufName kSparseRouter[] = {{"ffn_gate_inp", "block_sparse_moe.gate"}};

// --- those of one family

constexpr GgufName kGranite[] = {{"ffn_gate_inp", "block_sparse_moe.router.layer"}};
constexpr GgufName kGlmMoe[] = {
    {"ffn_gate_shexp", "mlp.shared_experts.gate_proj"},
    {"ffn_up_shexp", "mlp.shared_experts.up_proj"},
    {"ffn_down_shexp", "mlp.shared_experts.down_proj"},
    {"exp_probs_b.bias", "mlp.gate.e_score_correction_bias", false, true}};
constexpr GgufName kMiniMax[] = {
    {"exp_probs_b.bias", "block_sparse_moe.e_score_correction_bias", false, true}};
constexpr GgufName kHunyuan[] = {{"ffn_gate_inp", "mlp.router.gate"},
                                 {"ffn_gate_shexp", "mlp.shared_mlp.gate_proj"},
                                 {"ffn_up_shexp", "mlp.shared_mlp.up_proj"},
                                 {"ffn_down_shexp", "mlp.shared_mlp.down_proj"},
                                 {"exp_probs_b", "mlp.expert_bias", false, true}};
constexpr GgufName kGemma4[] = {{"ffn_gate_inp.scale", "router.scale", false, true},
                                {"ffn_gate_inp", "router.proj"},
                                {"ffn_down_exps.scale", "router.per_expert_scale", false, true},
                                {"ffn_gate_up_exps.weight", "experts.gate_up_proj", false, true},
                                {"ffn_down_exps.weight", "experts.down_proj", false, true},
                                {"post_ffw_norm_1", "post_feedforward_layernorm_1"},
                                {"pre_ffw_norm_2", "pre_feedforward_layernorm_2"},
                                {"post_ffw_norm_2", "post_feedforward_layernorm_2"},
                                {"layer_output_scale.weight", "layer_scalar", false, true},
                                {"inp_gate", "per_layer_input_gate"},
                                {"proj", "per_layer_projection"},
                                {"post_norm", "post_per_layer_input_norm"}};
constexpr GgufName kGemma4Model[] = {
    {"per_layer_token_embd.weight", "model.embed_tokens_per_layer.weight"},
    {"per_layer_model_proj.weight", "model.per_layer_model_projection.weight"},
    {"per_layer_proj_norm.weight", "model.per_layer_projection_norm.weight"}};
constexpr GgufName kGptOss[] = {{"attn_sinks.weight", "self_attn.sinks", false, true},
                                {"ffn_gate_inp", "mlp.router", true},
                                {"ffn_gate_exps", "mlp.experts.gate_proj", true},
                                {"ffn_up_exps", "mlp.experts.up_proj", true},
                                {"ffn_down_exps", "mlp.experts.down_proj", true}};
constexpr GgufName kSharedExpert[] = {{"ffn_gate_inp_shexp", "mlp.shared_expert_gate"},
                                      {"ffn_gate_shexp", "mlp.shared_expert.gate_proj"},
                                      {"ffn_up_shexp", "mlp.shared_expert.up_proj"},
                                      {"ffn_down_shexp", "mlp.shared_expert.down_proj"}};
constexpr GgufName kDeltaNet[] = {{"attn_qkv", "linear_attn.in_proj_qkv"},
                                  {"attn_gate", "linear_attn.in_proj_z"},
                                  {"ssm_out", "linear_attn.out_proj"},
                                  {"ssm_norm.weight", "linear_attn.norm.weight", false, true},
                                  {"ssm_conv1d.weight", "linear_attn.conv1d.weight", false, true},
                                  {"ssm_dt.bias", "linear_attn.dt_bias", false, true},
                                  {"ssm_a", "linear_attn.minus_decay", false, true}};
constexpr GgufName kDeltaNetApart[] = {{"ssm_beta", "linear_attn.in_proj_b"},
                                       {"ssm_alpha", "linear_attn.in_proj_a"}};
constexpr GgufName kDeltaNetTogether[] = {{"ssm_in", "linear_attn.in_proj_qkvz"},
                                          {"ssm_ba", "linear_attn.in_proj_ba"}};

constexpr GgufName kLfm[] = {{"attn_norm", "operator_norm"},
                             {"ffn_norm", "ffn_norm"},
                             {"attn_q", "self_attn.q_proj"},
                             {"attn_k", "self_attn.k_proj"},
                             {"attn_v", "self_attn.v_proj"},
                             {"attn_output", "self_attn.out_proj"},
                             {"attn_q_norm", "self_attn.q_layernorm"},
                             {"attn_k_norm", "self_attn.k_layernorm"},
                             {"ffn_gate", "feed_forward.w1"},
                             {"ffn_up", "feed_forward.w3"},
                             {"ffn_down", "feed_forward.w2"},
                             {"shortconv.in_proj", "conv.in_proj", true},
                             {"shortconv.out_proj", "conv.out_proj", true},
                             {"shortconv.conv", "conv.conv", true}};
constexpr GgufName kLfmExperts[] = {{"ffn_gate_inp", "feed_forward.gate"},
                                    {"ffn_gate_exps", "feed_forward.experts.gate_proj"},
                                    {"ffn_up_exps", "feed_forward.experts.up_proj"},
                                    {"ffn_down_exps", "feed_forward.experts.down_proj"},
                                    {"exp_probs_b.bias", "feed_forward.expert_bias", false, true}};
constexpr GgufName kLfmModel[] = {{"token_embd_norm.weight", "model.embedding_norm.weight"}};

constexpr GgufName kGraniteHybrid[] = {{"ssm_in", "mamba.in_proj", true},
                                       {"ssm_out", "mamba.out_proj", true},
                                       {"ssm_conv1d", "mamba.conv1d", true},
                                       {"ssm_dt.bias", "mamba.dt_bias", false, true},
                                       {"ssm_a", "mamba.minus_decay", false, true},
                                       {"ssm_d", "mamba.D", false, true},
                                       {"ssm_norm", "mamba.norm"},
                                       {"ffn_gate", "shared_mlp.gate_proj"},
                                       {"ffn_up", "shared_mlp.up_proj"},
                                       {"ffn_down", "shared_mlp.output_linear"},
                                       {"ffn_gate_shexp", "shared_mlp.gate_proj"},
                                       {"ffn_up_shexp", "shared_mlp.up_proj"},
                                       {"ffn_down_shexp", "shared_mlp.output_linear"}};
constexpr GgufName kNemotron[] = {
    {"attn_norm", "norm"},
    {"attn_q", "mixer.q_proj"},
    {"attn_k", "mixer.k_proj"},
    {"attn_v", "mixer.v_proj"},
    {"attn_output", "mixer.o_proj"},
    {"ssm_in", "mixer.in_proj", true},
    {"ssm_out", "mixer.out_proj", true},
    {"ssm_conv1d", "mixer.conv1d", true},
    {"ssm_dt.bias", "mixer.dt_bias", false, true},
    {"ssm_a", "mixer.minus_decay", false, true},
    {"ssm_d", "mixer.D", false, true},
    {"ssm_norm", "mixer.norm"},
    {"ffn_up", "mixer.up_proj", true},
    {"ffn_down", "mixer.down_proj", true},
    {"ffn_gate_inp", "mixer.gate"},
    {"ffn_up_exps", "mixer.experts.up_proj"},
    {"ffn_down_exps", "mixer.experts.down_proj"},
    {"ffn_up_shexp", "mixer.shared_experts.up_proj"},
    {"ffn_down_shexp", "mixer.shared_experts.down_proj"},
    {"exp_probs_b.bias", "mixer.gate.e_score_correction_bias", false, true}};
constexpr GgufName kNemotronModel[] = {{"token_embd.weight", "model.embeddings.weight"},
                                       {"output_norm.weight", "model.norm_f.weight"}};

constexpr GgufName kLlama4[] = {{"ffn_gate", "feed_forward.gate_proj"},
                                {"ffn_up", "feed_forward.up_proj"},
                                {"ffn_down", "feed_forward.down_proj"},
                                {"ffn_gate_inp", "feed_forward.router"},
                                {"ffn_gate_exps", "feed_forward.experts.gate_proj"},
                                {"ffn_up_exps", "feed_forward.experts.up_proj"},
                                {"ffn_down_exps", "feed_forward.experts.down_proj"},
                                {"ffn_gate_shexp", "feed_forward.shared_expert.gate_proj"},
                                {"ffn_up_shexp", "feed_forward.shared_expert.up_proj"},
                                {"ffn_down_shexp", "feed_forward.shared_expert.down_proj"}};

constexpr std::string_view kRopeFactors[] = {"rope_freqs.weight"};
constexpr std::string_view kLongRope[] = {"rope_factors_long.weight", "rope_factors_short.weight"};

}  // namespace

std::span<const GgufFamily> gguf_families() {
  static const GgufFamily kFamilies[] = {
      {.architecture = "llama",
       .model_type = "llama",
       .names = {kNorms, kAttention, kMlpBiased, kSparseRouter, kSparseExperts},
       .paired = true,
       .read = gguf_llama},
      {.architecture = "llama4",
       .model_type = "llama4_text",
       .names = {kNorms, kAttention, kLlama4},
       .read = gguf_llama4},
      {.architecture = "mistral3",
       .model_type = "mistral",
       .names = {kNorms, kAttentionPlain, kMlp},
       .paired = true,
       .read = gguf_mistral3},
      {.architecture = "qwen2", .model_type = "qwen2", .names = {kNorms, kAttentionBiasedIn, kMlp}},
      {.architecture = "qwen3",
       .model_type = "qwen3",
       .names = {kNorms, kAttention, kHeadNorms, kMlp}},
      {.architecture = "qwen3moe",
       .model_type = "qwen3_moe",
       .names = {kNorms, kAttention, kHeadNorms, kMlp, kRouter, kExperts},
       .read = gguf_qwen3_moe},
      {.architecture = "qwen3next",
       .model_type = "qwen3_next",
       .names = {kNormsByPlace, kAttention, kHeadNorms, kMlp, kRouter, kExperts, kSharedExpert,
                 kDeltaNet, kDeltaNetTogether},
       .zero_centred = true,
       .partial = true,
       .has_head = true,
       .read = gguf_qwen3_next},
      {.architecture = "qwen35",
       .model_type = "qwen3_5_text",
       .names = {kNormsByPlace, kAttention, kHeadNorms, kMlp, kDeltaNet, kDeltaNetApart},
       .zero_centred = true,
       .partial = true,
       .has_head = true,
       .tiled = true,
       .read = gguf_qwen3_5},
      {.architecture = "qwen35moe",
       .model_type = "qwen3_5_moe_text",
       .names = {kNormsByPlace, kAttention, kHeadNorms, kRouter, kExperts, kSharedExpert, kDeltaNet,
                 kDeltaNetApart},
       .zero_centred = true,
       .partial = true,
       .has_head = true,
       .tiled = true,
       .read = gguf_qwen3_5_moe},
      {.architecture = "gemma2",
       .model_type = "gemma2",
       .names = {kGemmaNorms, kAttention, kMlp},
       .zero_centred = true,
       .read = gguf_gemma2},
      {.architecture = "gemma3",
       .model_type = "gemma3_text",
       .names = {kGemmaNorms, kAttention, kHeadNorms, kMlp},
       .zero_centred = true,
       .read = gguf_gemma3},
      {.architecture = "gemma4",
       .model_type = "gemma4_text",
       .names = {kGemmaNorms, kAttention, kHeadNorms, kMlp, kGemma4},
       .layers_differ = true,
       .of_model = kGemma4Model,
       .said = kRopeFactors,
       .read = gguf_gemma4},
      {.architecture = "gpt-oss",
       .model_type = "gpt_oss",
       .names = {kNormsByPlace, kAttention, kGptOss},
       .read = gguf_gpt_oss},
      {.architecture = "phi3",
       .model_type = "phi3",
       .names = {kNorms, kAttentionFused, kMlpFused},
       .partial = true,
       .said = kLongRope,
       .read = gguf_phi3},
      {.architecture = "granite",
       .model_type = "granite",
       .names = {kNorms, kAttention, kMlpBiased},
       .paired = true,
       .read = gguf_granite},
      {.architecture = "granitemoe",
       .model_type = "granitemoe",
       .names = {kNorms, kAttention, kGranite, kSparseExperts},
       .paired = true,
       .read = gguf_granite_moe},
      {.architecture = "granitehybrid",
       .model_type = "granitemoehybrid",
       .names = {kNorms, kAttention, kGranite, kSparseExperts, kGraniteHybrid},
       .paired = true,
       .partly = true,
       .read = gguf_granite_hybrid},
      {.architecture = "nemotron_h",
       .model_type = "nemotron_h",
       .names = {kNemotron},
       .paired = true,
       .partly = true,
       .unrotated = true,
       .of_model = kNemotronModel,
       .read = gguf_nemotron_h},
      {.architecture = "nemotron_h_moe",
       .model_type = "nemotron_h",
       .names = {kNemotron},
       .paired = true,
       .partly = true,
       .unrotated = true,
       .of_model = kNemotronModel,
       .read = gguf_nemotron_h},
      {.architecture = "smollm3",
       .model_type = "smollm3",
       .names = {kNorms, kAttention, kMlpBiased},
       .paired = true,
       .read = gguf_smollm3},
      {.architecture = "olmo2",
       .model_type = "olmo2",
       .names = {kNormsBehind, kAttention, kHeadNorms, kMlp},
       .read = gguf_olmo2},
      {.architecture = "exaone4",
       .model_type = "exaone4",
       .names = {kNormsBehind, kAttentionPlain, kHeadNorms, kMlp},
       .read = gguf_exaone4},
      {.architecture = "glm4",
       .model_type = "glm4",
       .names = {kGlmNorms, kAttentionBiasedIn, kMlpFused},
       .partial = true,
       .read = gguf_glm4},
      {.architecture = "glm4moe",
       .model_type = "glm4_moe",
       .names = {kNormsByPlace, kAttentionBiasedIn, kHeadNorms, kMlp, kRouter, kExperts, kGlmMoe},
       .partial = true,
       .read = gguf_glm4_moe},
      {.architecture = "seed_oss",
       .model_type = "seed_oss",
       .names = {kNormsByPlace, kAttention, kMlpBiased},
       .read = gguf_seed_oss},
      {.architecture = "ernie4_5",
       .model_type = "ernie4_5",
       .names = {kNorms, kAttention, kMlpBiased},
       .read = gguf_ernie4_5},
      {.architecture = "hy_v3",
       .model_type = "hy_v3",
       .names = {kNorms, kAttention, kHeadNorms, kMlp, kExperts, kHunyuan},
       .read = gguf_hy_v3},
      {.architecture = "minimax-m2",
       .model_type = "minimax_m2",
       .names = {kNorms, kAttentionPlain, kHeadNorms, kSparseRouter, kSparseExperts, kMiniMax},
       .partial = true,
       .read = gguf_minimax_m2},
      {.architecture = "lfm2",
       .model_type = "lfm2",
       .names = {kLfm},
       .partly = true,
       .of_model = kLfmModel,
       .read = gguf_lfm2},
      {.architecture = "lfm2moe",
       .model_type = "lfm2_moe",
       .names = {kLfm, kLfmExperts},
       .partly = true,
       .of_model = kLfmModel,
       .read = gguf_lfm2_moe}};
  return kFamilies;
}

const GgufFamily& gguf_family(const GgufMetadata& metadata) {
  constexpr const char* kKey = "general.architecture";
  const std::string_view name = metadata.require_string(kKey);
  const auto families = gguf_families();
  const auto family = std::ranges::find(
      families, name, [](const GgufFamily& one) { return std::string_view(one.architecture); });
  if (family != families.end()) return *family;
  std::string all;
  for (const GgufFamily& one : families) {
    all += (all.empty() ? "" : ", ") + std::string(one.architecture);
  }
  metadata.fail(kKey, "one of " + all + " (others are not supported)");
}

}  // namespace dendrite
