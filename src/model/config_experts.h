#pragma once

#include <vector>

#include "io/json_file.h"
#include "model/config.h"

// Configs of models some of whose layers are mixtures of experts. All throw Error naming the key.
namespace dendrite {

/// What families with attention and mixtures have beside the sizes that all have.
void read_qwen3_moe(const JsonObject& json, DecoderConfig& config);
void read_mixtral(const JsonObject& json, DecoderConfig& config);
void read_granitemoe(const JsonObject& json, DecoderConfig& config);
void read_glm4_moe(const JsonObject& json, DecoderConfig& config);
void read_minimax_m2(const JsonObject& json, DecoderConfig& config);
void read_hy_v3(const JsonObject& json, DecoderConfig& config);
void read_gpt_oss(const JsonObject& json, DecoderConfig& config);

/// The mixtures of Granite 4's hybrids alone, which stand beside an MLP.
void read_granite_hybrid_experts(const JsonObject& json, DecoderConfig& config);

/// The mixtures of Nemotron 3 alone, which are these layers: experts without gates.
void read_nemotron_experts(const JsonObject& json, std::vector<bool> mixed, DecoderConfig& config);

/// The mixtures of Llama 4 alone; sets ffn_dim to that of the other layers.
void read_llama4_experts(const JsonObject& json, DecoderConfig& config);

/// The mixtures of Kimi-Linear alone.
void read_kimi_experts(const JsonObject& json, DecoderConfig& config);

/// The mixtures of LFM2 alone.
void read_lfm2_experts(const JsonObject& json, DecoderConfig& config);

/// How DeepSeek spells what Kimi-Linear spells otherwise.
struct RoutedKeys {
  const char* experts = "n_routed_experts";
  const char* chosen = "num_experts_per_tok";
  const char* shared = "n_shared_experts";
  const char* normalised = "norm_topk_prob";
  const char* groups = "n_group";
};

/// What missing keys mean in configs of DeepSeek's kind.
struct RoutedDefaults {
  std::int64_t experts = 0;
  std::int64_t chosen = 0;   // a token
  std::int64_t ffn_dim = 0;  // of an expert
  std::int64_t dense = 0;    // the first so many layers are no mixtures
  std::int64_t shared = 1;
  double scale = 1;
  bool normalised = true;
  std::int64_t groups = 1;
  std::int64_t chosen_groups = 1;
  RouterScore score = RouterScore::kSigmoid;  // with a correction of choices
  RoutedKeys keys{};
};
void read_routed_experts(const JsonObject& json, const RoutedDefaults& missing,
                         DecoderConfig& config);

/// What Qwen3-Next has beside what all hybrids have: those that are mixtures have a shared expert.
void read_next_experts(const JsonObject& json, DecoderConfig& config);

/// The same of Qwen3.5: all layers are mixtures, and have a shared expert.
void read_qwen3_5_experts(const JsonObject& json, DecoderConfig& config);

}  // namespace dendrite
