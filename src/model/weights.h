#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "backend/backend.h"
#include "io/checkpoint.h"
#include "model/config.h"
#include "model/parts/attention.h"
#include "model/parts/delta_net.h"
#include "model/parts/experts.h"
#include "model/parts/experts_beside.h"
#include "model/parts/gated_ffn.h"
#include "model/parts/latent_attention.h"
#include "model/parts/layer_inputs.h"
#include "model/parts/mamba.h"
#include "model/parts/short_conv.h"

namespace dendrite {

/// The weights of a decoder on its device.
struct DecoderWeights {
  struct Layer {
    std::variant<std::monostate, AttentionWeights, DeltaNetWeights, ShortConvWeights, MambaWeights,
                 LatentWeights>
        mixer;
    std::variant<std::monostate, GatedFfnWeights, ExpertsWeights, ExpertsBesideWeights> ffn;
    std::optional<LayerInputWeights> input{};
    float scale = 1;
  };
  std::unique_ptr<Weight> embedding;  // [vocab, dim]
  std::optional<LayerInputsWeights> layer_inputs{};
  std::vector<Layer> layers;
  Norm final_norm;
  std::unique_ptr<Weight> output;  // [vocab, dim]; null: the embedding is used

  const Weight& output_matrix() const { return output ? *output : *embedding; }
  std::int64_t parameters = 0;
  std::int64_t size_bytes = 0;  // on the device
  Compatibility compatibility;  // of the products whose inputs would be rounded
};

AttentionShape attention_shape(const DecoderConfig& config, std::int64_t layer);
AttentionWidths attention_widths(const DecoderConfig& config);
GatedFfnShape ffn_shape(const DecoderConfig& config, std::int64_t layer);
/// Requires config.layer_inputs.
LayerInputsShape layer_inputs_shape(const DecoderConfig& config);
/// Requires config.delta_net.
DeltaNetShape delta_net_shape(const DecoderConfig& config);
/// Requires config.short_conv.
ShortConvShape short_conv_shape(const DecoderConfig& config);
/// Requires config.mamba.
MambaShape mamba_shape(const DecoderConfig& config);
/// Requires config.latent.
LatentShape latent_shape(const DecoderConfig& config);
/// Requires config.experts.
ExpertsShape experts_shape(const DecoderConfig& config);

/// What the names of a decoder's tensors begin with, but for lm_head: "model.", "backbone.", and in
/// a checkpoint that has more than text "model.language_model." or "language_model.model.".
std::string tensor_prefix(const Checkpoint& checkpoint);
/// What the matrix is called that gives the logits, where it is not the embedding.
std::string output_name(const Checkpoint& checkpoint);

/// Reads, checks and packs all tensors. Throws Error naming the tensor and its file: missing, of
/// another shape or type than the config says, or holding NaN or infinity.
DecoderWeights load_weights(const Checkpoint& checkpoint, const DecoderConfig& config,
                            Backend& backend);

/// Looks at names, shapes and types of all tensors alone. Throws Error as load_weights does.
void check_weights(const Checkpoint& checkpoint, const DecoderConfig& config, Backend& backend);

/// Of all products behind norms, as load_weights would have them multiplied.
Compatibility judge_weights(const Checkpoint& checkpoint, const DecoderConfig& config,
                            Backend& backend);

/// Random weights of the same shapes, made in place, for speed tests only.
DecoderWeights dummy_weights(const DecoderConfig& config, Backend& backend);

}  // namespace dendrite
