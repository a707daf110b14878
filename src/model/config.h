#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "backend/delta_net_sizes.h"
#include "core/dtype.h"
#include "model/generation_config.h"
#include "model/parts/experts_shape.h"
#include "model/rope.h"

namespace dendrite {

class Checkpoint;

/// A decoder of the Llama kind: pre-norm, RoPE (half-split), grouped-query attention, gated SiLU
/// MLP; in hybrids some layers have a gated delta network in place of attention, in mixtures some
/// have experts in place of the MLP. All numbers are
/// checked: positive, within limits, consistent with each other.
struct DecoderConfig {
  std::string model_type;    // see supported_model_types()
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
  bool attention_out_bias = false;    // on o
  bool mlp_bias = false;              // on gate, up, down
  bool qk_norm = false;               // RMSNorm of each head of q and k before RoPE
  bool attention_gate = false;        // what is attended times sigmoid of rows of q_proj
  bool zero_centred_norms = false;    // norm weights are 1 + what is stored
  std::vector<std::int64_t> windows;  // [layers]: position i sees j iff i - j < window; 0: full
  std::optional<DeltaNetSizes> delta_net;  // of a hybrid
  bool delta_net_by_key_head = false;      // how its tensors lie: DeltaNetShape::by_key_head
  std::vector<bool> recurrent;             // [layers] of a hybrid, else empty: delta networks
  std::optional<ExpertsSizes> experts;     // of a model with mixtures of experts
  std::vector<bool> mixed;                 // [layers] of such a model, else empty: mixtures
  ExpertNames expert_names = ExpertNames::kMlp;
  RopeConfig rope;
  std::int64_t max_positions = 0;   // what the model was made for; a hard limit only if
  bool max_positions_hard = false;  // ... this is set (see RopeConfig::position_limit)
  std::optional<std::int64_t> bos;
  std::vector<std::int64_t> eos;      // generation ends on any of these; all < vocab
  std::optional<DType> stored_dtype;  // as config.json says; the tensors' own types are what counts
  GenerationDefaults generation;
  std::vector<std::string> warnings;  // what was odd but usable, one line each

  bool is_recurrent(std::int64_t layer) const {
    return !recurrent.empty() && recurrent[static_cast<std::size_t>(layer)];
  }
  std::int64_t recurrent_layers() const {
    return std::count(recurrent.begin(), recurrent.end(), true);
  }
  bool is_mixed(std::int64_t layer) const {
    return !mixed.empty() && mixed[static_cast<std::size_t>(layer)];
  }
  std::int64_t mixed_layers() const { return std::count(mixed.begin(), mixed.end(), true); }
  /// Of the widest layer.
  std::int64_t widest_ffn() const {
    const bool dense = mixed_layers() < layers;
    return std::max(dense ? ffn_dim : 0, experts ? experts->widest() : 0);
  }
};

/// Reads config.json and, where there is one, generation_config.json. What a key that is missing
/// means is what transformers 5 takes it to mean for that family. Throws Error naming file and key:
/// a wrong type or range, or something that is not supported (model type, activation, RoPE type,
/// layer kind, quantisation); nothing is ever computed wrongly instead.
DecoderConfig load_config(const Checkpoint& checkpoint);

/// The same from texts. `folder` only names the files in messages; without `generation_json` the
/// folder has no such file.
DecoderConfig parse_config(std::string_view config_json,
                           std::optional<std::string_view> generation_json,
                           const std::string& folder);

/// Supported values of model_type, for messages: "llama, mistral, qwen2, ...".
std::string supported_model_types();

}  // namespace dendrite
