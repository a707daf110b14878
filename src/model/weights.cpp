#include "model/weights.h"

#include <cstring>

#include "model/weight_source.h"

namespace dendrite {
namespace {

/// The names below are Hugging Face's; all Llama-family classes share them.
std::string layer_name(std::int64_t layer, const char* rest) {
  return "model.layers." + std::to_string(layer) + "." + rest;
}

/// A file that says its output matrix is the embedding, yet holds another one: the tensor counts,
/// as it does for transformers.
bool has_own_output(const ModelFolder* folder) {
  if (folder == nullptr) return false;
  const TensorInfo* output = folder->find("lm_head.weight");
  const TensorInfo* embedding = folder->find("model.embed_tokens.weight");
  if (output == nullptr || embedding == nullptr) return false;
  return output->size_bytes != embedding->size_bytes || output->dtype != embedding->dtype ||
         std::memcmp(output->data, embedding->data, static_cast<std::size_t>(output->size_bytes)) !=
             0;
}

DecoderWeights::Layer read_layer(WeightSource& source, const DecoderConfig& c, std::int64_t i) {
  const auto name = [i](const char* rest) { return layer_name(i, rest); };
  const std::int64_t q = c.heads * c.head_dim;
  const std::int64_t kv = c.kv_heads * c.head_dim;
  DecoderWeights::Layer layer;
  layer.attn_norm = source.vector({{name("input_layernorm.weight"), c.dim}}, 1.0f);
  layer.qkv = source.matrix({{name("self_attn.q_proj.weight"), q},
                             {name("self_attn.k_proj.weight"), kv},
                             {name("self_attn.v_proj.weight"), kv}},
                            c.dim);
  if (c.attention_bias) {
    layer.qkv_bias = source.vector({{name("self_attn.q_proj.bias"), q},
                                    {name("self_attn.k_proj.bias"), kv},
                                    {name("self_attn.v_proj.bias"), kv}},
                                   0.0f);
  }
  if (c.qk_norm) {
    layer.q_norm = source.vector({{name("self_attn.q_norm.weight"), c.head_dim}}, 1.0f);
    layer.k_norm = source.vector({{name("self_attn.k_norm.weight"), c.head_dim}}, 1.0f);
  }
  layer.out = source.matrix({{name("self_attn.o_proj.weight"), c.dim}}, q);
  if (c.attention_out_bias) {
    layer.out_bias = source.vector({{name("self_attn.o_proj.bias"), c.dim}}, 0.0f);
  }
  layer.mlp_norm = source.vector({{name("post_attention_layernorm.weight"), c.dim}}, 1.0f);
  layer.gate_up = source.matrix(
      {{name("mlp.gate_proj.weight"), c.ffn_dim}, {name("mlp.up_proj.weight"), c.ffn_dim}}, c.dim);
  layer.down = source.matrix({{name("mlp.down_proj.weight"), c.dim}}, c.ffn_dim);
  if (c.mlp_bias) {
    layer.gate_up_bias = source.vector(
        {{name("mlp.gate_proj.bias"), c.ffn_dim}, {name("mlp.up_proj.bias"), c.ffn_dim}}, 0.0f);
    layer.down_bias = source.vector({{name("mlp.down_proj.bias"), c.dim}}, 0.0f);
  }
  return layer;
}

DecoderWeights read_all(WeightSource& source, const DecoderConfig& c) {
  DecoderWeights weights;
  weights.embedding = source.matrix({{"model.embed_tokens.weight", c.vocab}}, c.dim);
  for (std::int64_t i = 0; i < c.layers; ++i) weights.layers.push_back(read_layer(source, c, i));
  weights.final_norm = source.vector({{"model.norm.weight", c.dim}}, 1.0f);
  if (!c.tie_embeddings || has_own_output(source.folder())) {
    weights.output = source.matrix({{"lm_head.weight", c.vocab}}, c.dim);
  }
  weights.parameters = source.parameters();
  weights.size_bytes = source.size_bytes();
  return weights;
}

}  // namespace

DecoderWeights load_weights(const ModelFolder& folder, const DecoderConfig& config,
                            Backend& backend) {
  // A missing or misshapen tensor is found before gigabytes of others have been packed.
  WeightSource check(WeightSource::Walk::kCheck, &folder, backend);
  read_all(check, config);
  WeightSource source(WeightSource::Walk::kRead, &folder, backend);
  return read_all(source, config);
}

DecoderWeights dummy_weights(const DecoderConfig& config, Backend& backend) {
  WeightSource source(WeightSource::Walk::kRandom, nullptr, backend);
  return read_all(source, config);
}

}  // namespace dendrite
