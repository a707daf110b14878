#include "model/weights.h"

#include <cstring>
#include <string>

#include "model/parts/norm.h"
#include "model/parts/weight_source.h"
#include "model/splitting.h"

namespace dendrite {
namespace {

/// A file that says its output matrix is the embedding, yet holds another one: the tensor counts,
/// as it does for transformers.
bool has_own_output(const Checkpoint* checkpoint, const std::string& embedding_name) {
  if (checkpoint == nullptr) return false;
  const TensorInfo* output = checkpoint->find(output_name(*checkpoint));
  const TensorInfo* embedding =
      checkpoint->find(tensor_prefix(*checkpoint) + embedding_name + ".weight");
  if (output == nullptr || embedding == nullptr) return false;
  return output->size_bytes != embedding->size_bytes ||
         output->stored_type != embedding->stored_type ||
         std::memcmp(output->data, embedding->data, static_cast<std::size_t>(output->size_bytes)) !=
             0;
}

/// The norms around each of the two have numbers, or there is one before both and none behind.
ExpertsBesideWeights read_beside(WeightSource& source, const std::string& prefix,
                                 const DecoderConfig& c, GatedFfnShape dense) {
  ExpertsShape experts = experts_shape(c);
  dense.residual = 1;
  if (!c.norms.behind_ffn.empty()) {
    dense.norms.behind_ffn = c.norms.behind_ffn + "_1";
    experts.norms.before_ffn = c.norms.before_ffn + "_2";
    experts.norms.behind_ffn = c.norms.behind_ffn + "_2";
  }
  ExpertsBesideWeights weights;
  weights.factor = c.residual_scale;
  weights.dense = GatedFfnWeights::read(source, prefix, dense);
  weights.experts = ExpertsWeights::read(source, prefix, experts);
  weights.behind = read_norm(source, prefix, c.norms.behind_ffn, c.dim, c.norm_eps, false);
  return weights;
}

void read_mixer(WeightSource& source, const std::string& prefix, const DecoderConfig& c,
                std::int64_t number, DecoderWeights::Layer& layer) {
  if (!c.is_recurrent(number)) {
    if (c.latent) {
      layer.mixer = LatentWeights::read(source, prefix, latent_shape(c));
    } else {
      layer.mixer = AttentionWeights::read(source, prefix, attention_shape(c, number));
    }
  } else if (c.short_conv) {
    layer.mixer = ShortConvWeights::read(source, prefix, short_conv_shape(c));
  } else if (c.mamba) {
    layer.mixer = MambaWeights::read(source, prefix, mamba_shape(c));
  } else {
    layer.mixer = DeltaNetWeights::read(source, prefix, delta_net_shape(c));
  }
}

void read_ffn(WeightSource& source, const std::string& prefix, const DecoderConfig& c,
              std::int64_t number, DecoderWeights::Layer& layer) {
  if (c.experts_beside) {
    layer.ffn = read_beside(source, prefix, c, ffn_shape(c, number));
  } else if (c.is_mixed(number)) {
    layer.ffn = ExpertsWeights::read(source, prefix, experts_shape(c));
  } else {
    layer.ffn = GatedFfnWeights::read(source, prefix, ffn_shape(c, number));
  }
}

/// The names are Hugging Face's; all Llama-family classes share them.
DecoderWeights read_all(WeightSource& source, const DecoderConfig& c) {
  DecoderWeights weights;
  const std::string model =
      source.checkpoint() == nullptr ? "model." : tensor_prefix(*source.checkpoint());
  NormNames norms{model + c.final_norm + ".weight"};  // before the output matrix
  norms.zero_centred = c.zero_centred_norms;
  const bool own_output = !c.tie_embeddings || has_own_output(source.checkpoint(), c.embedding);
  weights.embedding = source.matrix(
      {{.name = model + c.embedding + ".weight", .rows = c.vocab, .output = !own_output}}, c.dim,
      own_output ? NormNames{} : norms);
  if (c.layer_inputs) {
    weights.layer_inputs = LayerInputsWeights::read(source, model, layer_inputs_shape(c));
  }
  for (std::int64_t i = 0; i < c.layers; ++i) {
    const std::string prefix = model + "layers." + std::to_string(i) + ".";
    DecoderWeights::Layer& layer = weights.layers.emplace_back();
    if (c.has_mixer(i)) read_mixer(source, prefix, c, i, layer);
    if (c.parts_of(i) != LayerParts::kMixer) read_ffn(source, prefix, c, i, layer);
    if (c.layer_inputs) {
      layer.input = LayerInputWeights::read(source, prefix, layer_inputs_shape(c));
    }
    if (c.layer_scales) layer.scale = source.scalar(prefix + "layer_scalar");
  }
  weights.final_norm = {
      source.vector({{norms.before, c.dim}}, 1.0F, change_of(c.zero_centred_norms)), c.norm_eps};
  if (own_output) {
    const std::string name =
        source.checkpoint() == nullptr ? "lm_head.weight" : output_name(*source.checkpoint());
    weights.output = source.matrix({{.name = name, .rows = c.vocab, .output = true}}, c.dim, norms,
                                   false, {Split::Of::kLogits, {c.vocab}});
  }
  weights.parameters = source.parameters();
  weights.size_bytes = source.size_bytes();
  weights.compatibility = source.compatibility();
  return weights;
}

}  // namespace

AttentionShape attention_shape(const DecoderConfig& c, std::int64_t layer) {
  const bool wide = c.is_wide(layer);
  const bool own = c.has_own_kv(layer);
  AttentionShape shape;
  shape.dim = c.dim;
  shape.heads = c.heads;
  shape.kv_heads = !own ? 0 : wide ? c.wide->kv_heads : c.kv_heads;
  shape.head_dim = wide ? c.wide->head_dim : c.head_dim;
  shape.rotary_dim = wide ? shape.head_dim : c.rotary_dim;
  shape.value_norm = c.value_norm;
  shape.value_is_key = c.wide_value_is_key && c.windows[static_cast<std::size_t>(layer)] == 0;
  shape.bias = c.attention_bias;
  shape.out_bias = c.attention_out_bias;
  shape.qk_norm = c.qk_norm;
  shape.qk_whole = c.qk_norm_whole;
  shape.qk_plain = c.qk_norm_plain && c.is_rotated(layer);
  shape.gate = c.attention_gate;
  shape.head_gate = c.attention_head_gate;
  shape.zero_centred = c.zero_centred_norms;
  shape.norm_eps = c.norm_eps;
  shape.fused = c.fused_qkv;
  shape.pairs = c.rope_pairs;
  shape.scale = c.attention_scale;
  shape.soft_cap = c.attention_soft_cap;
  shape.sinks = c.attention_sinks;
  shape.residual = c.residual_scale;
  shape.norms = c.norms;
  shape.names = c.attention_names;
  return shape;
}

AttentionWidths attention_widths(const DecoderConfig& c) {
  AttentionWidths widths;
  for (std::int64_t i = 0; i < c.layers; ++i) widths.include(attention_shape(c, i));
  if (c.latent) widths.columns = latent_shape(c).qk_columns();
  return widths;
}

LayerInputsShape layer_inputs_shape(const DecoderConfig& c) {
  return {*c.layer_inputs, c.layers, c.dim, c.norm_eps};
}

GatedFfnShape ffn_shape(const DecoderConfig& c, std::int64_t layer) {
  GatedFfnShape shape;
  shape.dim = c.dim;
  shape.ffn_dim = c.ffn_of(layer);
  shape.bias = c.mlp_bias;
  shape.norm_eps = c.norm_eps;
  shape.zero_centred = c.zero_centred_norms;
  shape.fused = c.fused_mlp;
  shape.squared_relu = c.squared_relu;
  shape.activation = c.activation;
  shape.residual = c.residual_scale;
  shape.norms = c.norms;
  shape.names = c.mlp_names;
  return shape;
}

DeltaNetShape delta_net_shape(const DecoderConfig& c) {
  return {*c.delta_net, c.dim, c.norm_eps, c.zero_centred_norms, c.delta_net_by_key_head};
}

ShortConvShape short_conv_shape(const DecoderConfig& c) {
  return {*c.short_conv, c.short_conv_bias, c.norm_eps, c.norms};
}

MambaShape mamba_shape(const DecoderConfig& c) {
  return {*c.mamba, c.dim, c.norm_eps, c.residual_scale, c.norms};
}

LatentShape latent_shape(const DecoderConfig& c) {
  LatentShape shape{*c.latent};
  shape.dim = c.dim;
  shape.heads = c.heads;
  shape.bias = c.attention_bias;
  shape.pairs = c.rope_pairs;
  shape.norm_eps = c.norm_eps;
  shape.scale = c.attention_scale;
  shape.norms = c.norms;
  return shape;
}

ExpertsShape experts_shape(const DecoderConfig& c) {
  return {*c.experts,           c.dim,   c.expert_names,      c.norm_eps,
          c.zero_centred_norms, c.norms, c.expert_activation, c.squared_relu};
}

std::string output_name(const Checkpoint& checkpoint) {
  const std::string whole = "lm_head.weight";
  const std::string part = "language_model.lm_head.weight";
  return checkpoint.find(part) != nullptr ? part : whole;
}

std::string tensor_prefix(const Checkpoint& checkpoint) {
  for (const char* part : {"model.language_model.", "language_model.model."}) {
    if (checkpoint.find(part + std::string("norm.weight")) != nullptr) return part;
  }
  if (checkpoint.find("backbone.norm_f.weight") != nullptr) return "backbone.";
  return "model.";
}

void check_weights(const Checkpoint& checkpoint, const DecoderConfig& config, Backend& backend) {
  WeightSource check(WeightSource::Walk::kCheck, &checkpoint, backend);
  read_all(check, config);
}

Compatibility judge_weights(const Checkpoint& checkpoint, const DecoderConfig& config,
                            Backend& backend) {
  WeightSource judge(WeightSource::Walk::kJudge, &checkpoint, backend, config.keeps_fp8_inputs,
                     config.rounds_block_inputs);
  return read_all(judge, config).compatibility;
}

DecoderWeights load_weights(const Checkpoint& checkpoint, const DecoderConfig& config,
                            Backend& backend) {
  // A missing or misshapen tensor is found before gigabytes of others have been packed.
  check_weights(checkpoint, config, backend);
  check_split(config, backend.ranks());
  WeightSource source(WeightSource::Walk::kRead, &checkpoint, backend, config.keeps_fp8_inputs,
                      config.rounds_block_inputs);
  return read_all(source, config);
}

DecoderWeights dummy_weights(const DecoderConfig& config, Backend& backend) {
  check_split(config, backend.ranks());
  WeightSource source(WeightSource::Walk::kRandom, nullptr, backend);
  return read_all(source, config);
}

}  // namespace dendrite
