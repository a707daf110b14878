#include "model/weights.h"

#include <cmath>
#include <cstring>
#include <functional>

#include "dendrite/error.h"

namespace dendrite {
namespace {

/// The names below are Hugging Face's; all Llama-family classes share them.
std::string layer_name(std::int64_t layer, const char* rest) {
  return "model.layers." + std::to_string(layer) + "." + rest;
}

DType dtype_of(ComputeType type) {
  switch (type) {
    case ComputeType::kF32:
      return DType::kF32;
    case ComputeType::kBF16:
      return DType::kBF16;
    case ComputeType::kF16:
      return DType::kF16;
  }
  return DType::kF32;
}

float widen(const std::byte* data, DType dtype, std::int64_t index) {
  const std::byte* at = data + index * size_of(dtype);
  if (dtype == DType::kF32) {
    float value;
    std::memcpy(&value, at, sizeof value);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, at, sizeof bits);
  return dtype == DType::kBF16 ? to_f32(static_cast<BF16>(bits)) : to_f32(static_cast<F16>(bits));
}

/// What a walk over a decoder's tensors does with each: look at names, shapes and types only, read
/// and pack, or make up random ones.
enum class Walk : std::uint8_t { kCheck, kRead, kRandom };

class Source {
 public:
  Source(Walk walk, const ModelFolder* folder, Backend& backend)
      : walk_(walk), folder_(folder), backend_(backend) {}

  struct Part {
    std::string name;
    std::int64_t rows;
  };

  std::unique_ptr<Weight> matrix(const std::vector<Part>& parts, std::int64_t cols) {
    std::unique_ptr<Weight> weight;
    if (walk_ == Walk::kRandom) {
      std::int64_t rows = 0;
      for (const Part& part : parts) rows += part.rows;
      weight = backend_.random_weight(rows, cols, dtype_of(backend_.compute_type()), ++seed_);
    } else {
      std::vector<HostMatrix> matrices;
      for (const Part& part : parts) {
        const TensorInfo& tensor = folder_->require(part.name, {part.rows, cols});
        matrices.push_back({tensor.data, require_dtype(tensor), part.rows, cols, tensor.name,
                            std::string(tensor.file)});
      }
      if (walk_ == Walk::kCheck) return nullptr;
      weight = backend_.pack(matrices);
    }
    parameters_ += weight->rows() * weight->cols();
    size_bytes_ += weight->size_bytes();
    return weight;
  }

  std::unique_ptr<Buffer> vector(const std::vector<Part>& parts, float dummy_value) {
    std::vector<float> values;
    for (const Part& part : parts) append(part, dummy_value, values);
    if (walk_ == Walk::kCheck) return nullptr;
    auto buffer = backend_.make_buffer(static_cast<std::int64_t>(values.size()));
    backend_.upload(buffer->data(), values);
    parameters_ += buffer->count();
    size_bytes_ += buffer->count() * 4;
    return buffer;
  }

  /// A file that says its output matrix is the embedding, yet holds another one: the tensor counts,
  /// as it does for transformers.
  bool has_own_output() const {
    if (folder_ == nullptr) return false;
    const TensorInfo* output = folder_->find("lm_head.weight");
    const TensorInfo* embedding = folder_->find("model.embed_tokens.weight");
    if (output == nullptr || embedding == nullptr) return false;
    return output->size_bytes != embedding->size_bytes || output->dtype != embedding->dtype ||
           std::memcmp(output->data, embedding->data,
                       static_cast<std::size_t>(output->size_bytes)) != 0;
  }

  std::int64_t parameters() const { return parameters_; }
  std::int64_t size_bytes() const { return size_bytes_; }

 private:
  void append(const Part& part, float dummy_value, std::vector<float>& values) const {
    if (walk_ == Walk::kRandom) {
      values.insert(values.end(), static_cast<std::size_t>(part.rows), dummy_value);
      return;
    }
    const TensorInfo& tensor = folder_->require(part.name, {part.rows});
    const DType dtype = require_dtype(tensor);
    for (std::int64_t i = 0; i < part.rows; ++i) {
      values.push_back(widen(tensor.data, dtype, i));
      if (!std::isfinite(values.back())) {
        throw Error(std::string(tensor.file) + ": tensor \"" + tensor.name + "\" holds " +
                    (std::isnan(values.back()) ? "NaN" : "infinity") + " at element " +
                    std::to_string(i) + "; expected finite values");
      }
    }
  }

  Walk walk_;
  const ModelFolder* folder_;  // null: Walk::kRandom
  Backend& backend_;
  std::uint64_t seed_ = 0;
  std::int64_t parameters_ = 0;
  std::int64_t size_bytes_ = 0;
};

DecoderWeights::Layer read_layer(Source& source, const DecoderConfig& c, std::int64_t i) {
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

DecoderWeights read_all(Source& source, const DecoderConfig& c) {
  DecoderWeights weights;
  weights.embedding = source.matrix({{"model.embed_tokens.weight", c.vocab}}, c.dim);
  for (std::int64_t i = 0; i < c.layers; ++i) weights.layers.push_back(read_layer(source, c, i));
  weights.final_norm = source.vector({{"model.norm.weight", c.dim}}, 1.0f);
  if (!c.tie_embeddings || source.has_own_output()) {
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
  Source check(Walk::kCheck, &folder, backend);
  read_all(check, config);
  Source source(Walk::kRead, &folder, backend);
  return read_all(source, config);
}

DecoderWeights dummy_weights(const DecoderConfig& config, Backend& backend) {
  Source source(Walk::kRandom, nullptr, backend);
  return read_all(source, config);
}

}  // namespace dendrite
