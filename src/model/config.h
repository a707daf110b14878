#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/delta_net_sizes.h"
#include "backend/kv_store.h"
#include "backend/short_conv_sizes.h"
#include "core/dtype.h"
#include "model/generation_config.h"
#include "model/parts/delta_net_shape.h"
#include "model/parts/experts_shape.h"
#include "model/parts/latent_shape.h"
#include "model/parts/layer_input_sizes.h"
#include "model/parts/layer_norms.h"
#include "model/parts/mamba_shape.h"
#include "model/parts/recurrent_sizes.h"
#include "model/parts/tensor_names.h"
#include "model/rope.h"

namespace dendrite {

/// Queries at later positions are larger: times 1 + beta * ln(1 + floor((position + ahead) /
/// length)).
struct QueryGrowth {
  double beta = 0;
  std::int64_t length = 0;
  std::int64_t ahead = 0;
  bool unrotated = false;  // those of layers without RoPE alone
  float at(std::int64_t position) const {
    const auto times = static_cast<float>((position + ahead) / length);
    return 1 + static_cast<float>(beta) * std::log(1 + times);
  }
};

/// Which of its two parts a layer has.
enum class LayerParts : std::uint8_t { kBoth, kMixer, kFeedForward };

/// A decoder of the Llama kind: RMSNorms, RoPE (half-split), grouped-query attention, a gated MLP;
/// in hybrids some layers have a gated delta network, a short convolution or Mamba-2 in place of
/// attention, in mixtures some have experts in place of the MLP. All numbers are checked: positive,
/// within limits, consistent with each other.
struct DecoderConfig {
  std::string model_type;    // as config.json says it
  std::int64_t dim = 0;      // width of the residual stream
  std::int64_t ffn_dim = 0;  // of layers that are no mixtures; if all are, of an expert
  std::int64_t layers = 0;
  std::int64_t heads = 0;  // a multiple of kv_heads; heads * head_dim need not be dim
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;    // even
  std::int64_t rotary_dim = 0;  // even, <= head_dim
  std::int64_t vocab = 0;       // rows of the embedding; may exceed the tokenizer's
  float norm_eps = 0;
  bool tie_embeddings = false;  // the output matrix is the embedding; lm_head.weight is not stored
  bool attention_bias = false;  // on q, k, v
  bool attention_out_bias = false;  // on o
  bool mlp_bias = false;            // on gate, up, down
  bool qk_norm = false;             // RMSNorm of each head of q and k before RoPE
  bool qk_norm_whole = false;       // ... of all heads of q and of k together
  bool qk_norm_plain = false;       // ... of each head without weights, in layers with RoPE
  bool value_norm = false;          // RMSNorm without weights of each head of v
  bool attention_gate = false;      // what is attended times sigmoid of rows of q_proj
  bool zero_centred_norms = false;  // norm weights are 1 + what is stored
  bool fused_qkv = false;           // qkv_proj is a tensor
  bool fused_mlp = false;           // MlpNames::fused is one
  bool squared_relu = false;        // MLPs and experts have no gates: down(max(up(x), 0)^2)
  bool rope_pairs = false;          // RoPE turns dims 2i and 2i + 1, as q and k are stored
  LayerNorms norms{};
  /// What is attended is times a sigmoid a head, of rows of gate_proj.
  bool attention_head_gate = false;
  std::string final_norm = "norm";  // its tensor's name
  std::string embedding = "embed_tokens";
  AttentionNames attention_names{};
  MlpNames mlp_names{};
  Activation activation{};
  float attention_scale = 0;     // of q . k; 0: 1 / sqrt(head_dim)
  float attention_soft_cap = 0;  // AttentionArgs::soft_cap
  bool attention_sinks = false;  // AttentionArgs::sinks
  float residual_scale = 1;      // of what a part gives to the stream
  float embedding_scale = 1;
  bool embedding_scale_rounds = false;  // to bf16, where products are of bf16
  float logit_scale = 1;
  float logit_soft_cap = 0;                   // a logit l becomes cap * tanh(l / cap); 0: it stays
  std::optional<QueryGrowth> query_growth{};  // behind RoPE
  std::vector<std::int64_t> windows;  // [layers]: position i sees j iff i - j < window; 0: full
  bool chunked = false;               // windows are chunks: see AttentionWindow
  /// Layers without a window, where their heads have another size than the others'. RoPE turns all
  /// of these.
  std::optional<KvLayers> wide{};
  bool wide_value_is_key = false;  // of layers without a window: v is k_proj's
  /// So many of the last layers take K and V of the last layer before them that has a window, or
  /// none, as they do.
  std::int64_t shared_kv = 0;
  std::int64_t shared_kv_ffn_dim = 0;             // of those; 0: as others
  std::optional<LayerInputSizes> layer_inputs{};  // what layers are told of a token by itself
  bool layer_scales = false;  // the stream behind a layer is times a number: layer_scalar
  /// Attention goes through a latent, which is what is kept: as one head of its kept_dim().
  std::optional<LatentSizes> latent{};
  std::optional<DeltaNetSizes> delta_net;  // of a hybrid
  bool delta_net_by_key_head = false;      // how its tensors lie: DeltaNetShape::by_key_head
  std::vector<bool> recurrent;             // [layers] of a hybrid, else empty: of its kind
  std::optional<ExpertsSizes> experts;     // of a model with mixtures of experts
  std::vector<bool> mixed;                 // [layers] of such a model, else empty: mixtures
  bool experts_beside = false;             // of a dense MLP, which layers with mixtures have, too
  ExpertNames expert_names{};
  Activation expert_activation{};
  /// Of a hybrid whose recurrent layers are short convolutions.
  std::optional<ShortConvSizes> short_conv{};
  bool short_conv_bias = false;           // of its projections and convolution
  std::optional<MambaKind> mamba{};       // of a hybrid whose recurrent layers are Mamba-2
  std::vector<LayerParts> layer_parts{};  // [layers]; empty: all have both
  RopeConfig rope;
  std::optional<RopeConfig> local_rope{};  // of layers with a window, where they have another
  std::vector<bool> unrotated{};           // [layers]: without RoPE; empty: none
  std::int64_t max_positions = 0;          // what the model was made for; a hard limit only if
  bool max_positions_hard = false;         // ... this is set (see RopeConfig::position_limit)
  std::optional<std::int64_t> bos;
  std::vector<std::int64_t> eos;      // generation ends on any of these; all < vocab
  std::optional<DType> stored_dtype;  // as config.json says; the tensors' own types are what counts
  GenerationDefaults generation;
  /// Of a head that predicts one token further (MTP), as config.json says: tensors are what counts.
  std::int64_t mtp_layers = 0;
  bool mtp_own_embedding = false;
  bool keeps_fp8_inputs = false;      // products with weights in FP8 may not round their inputs
  bool rounds_block_inputs = false;   // those in MXFP8 and NVFP4 may, to the same
  std::vector<std::string> warnings;  // what was odd but usable, one line each

  bool is_recurrent(std::int64_t layer) const {
    return !recurrent.empty() && recurrent[static_cast<std::size_t>(layer)];
  }
  LayerParts parts_of(std::int64_t layer) const {
    return layer_parts.empty() ? LayerParts::kBoth : layer_parts[static_cast<std::size_t>(layer)];
  }
  bool has_mixer(std::int64_t layer) const { return parts_of(layer) != LayerParts::kFeedForward; }
  bool has_attention(std::int64_t layer) const { return has_mixer(layer) && !is_recurrent(layer); }
  std::int64_t recurrent_layers() const {
    return std::count(recurrent.begin(), recurrent.end(), true);
  }
  /// Of a recurrent layer; none: there are no such layers.
  std::optional<RecurrentSizes> recurrent_sizes() const {
    if (delta_net) {
      RecurrentSizes sizes = dendrite::recurrent_sizes(*delta_net);
      sizes.in_columns += latent_columns(*delta_net);
      return sizes;
    }
    if (short_conv) return dendrite::recurrent_sizes(*short_conv);
    if (mamba) return dendrite::recurrent_sizes(*mamba);
    return std::nullopt;
  }
  bool is_rotated(std::int64_t layer) const {
    return unrotated.empty() || !unrotated[static_cast<std::size_t>(layer)];
  }
  /// Whether embeddings and logits are what their matrices give.
  bool scales() const { return embedding_scale != 1 || logit_scale != 1 || logit_soft_cap != 0; }
  bool is_mixed(std::int64_t layer) const {
    return !mixed.empty() && mixed[static_cast<std::size_t>(layer)];
  }
  std::int64_t mixed_layers() const { return std::count(mixed.begin(), mixed.end(), true); }
  bool is_wide(std::int64_t layer) const {
    return wide && windows[static_cast<std::size_t>(layer)] == 0;
  }
  bool has_own_kv(std::int64_t layer) const { return layer < layers - shared_kv; }
  std::int64_t ffn_of(std::int64_t layer) const {
    return has_own_kv(layer) || shared_kv_ffn_dim == 0 ? ffn_dim : shared_kv_ffn_dim;
  }
  /// Of the widest layer.
  std::int64_t widest_ffn() const {
    const bool dense = experts_beside || mixed_layers() < layers;
    return std::max({dense ? std::max(ffn_dim, shared_kv_ffn_dim) : 0,
                     experts ? experts->widest() : 0, layer_inputs ? layer_inputs->dim : 0});
  }
};

}  // namespace dendrite
