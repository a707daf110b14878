#pragma once

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "support/safetensors_writer.h"
#include "support/temporary_folder.h"

namespace dendrite::test {

/// Attention and norms that no model in tests/data has: layers of random bf16 weights around them.
struct TinyAttention {
  const char* model_type = "mistral";
  std::int64_t head_dim = 64;
  std::int64_t heads = 1;
  std::int64_t kv_heads = 1;
  float large_k_norm = 1;  // qwen3: a weight of each layer's k_norm
  /// Of norms in front of products: three weights, times so much; and the same columns of what they
  /// are multiplied with through it, so that the model computes the same.
  float large_norm = 1;
  bool tied = true;  // the embeddings give the logits
};

/// The folder of a model with two layers, a vocabulary of 256 tokens and no tokenizer.
class TinyModel {
 public:
  explicit TinyModel(const TinyAttention& attention) : large_norm_(attention.large_norm) {
    nlohmann::json config = {{"model_type", attention.model_type},
                             {"hidden_size", kDim},
                             {"intermediate_size", kFfnDim},
                             {"num_hidden_layers", kLayers},
                             {"num_attention_heads", attention.heads},
                             {"num_key_value_heads", attention.kv_heads},
                             {"head_dim", attention.head_dim},
                             {"vocab_size", kVocab},
                             {"max_position_embeddings", 2048},
                             {"rms_norm_eps", 1e-5},
                             {"rope_theta", 10000.0},
                             {"tie_word_embeddings", attention.tied},
                             {"sliding_window", nullptr},
                             {"torch_dtype", "bfloat16"}};
    const bool gemma = std::string(attention.model_type) == "gemma2";
    if (gemma) {
      config["hidden_activation"] = "gelu_pytorch_tanh";
      config["sliding_window"] = 128;  // of the first layer
      config["attn_logit_softcapping"] = 2.0;
    }
    std::ofstream(folder_.path() / "config.json") << config;

    const std::int64_t q = attention.heads * attention.head_dim;
    const std::int64_t kv = attention.kv_heads * attention.head_dim;
    add("model.embed_tokens.weight", {kVocab, kDim});
    add("model.norm.weight", {kDim});
    if (!attention.tied) add("lm_head.weight", {kVocab, kDim});
    for (int i = 0; i < kLayers; ++i) {
      const std::string layer = "model.layers." + std::to_string(i) + ".";
      add(layer + "input_layernorm.weight", {kDim});
      add(layer + "self_attn.q_proj.weight", {q, kDim});
      add(layer + "self_attn.k_proj.weight", {kv, kDim});
      add(layer + "self_attn.v_proj.weight", {kv, kDim});
      add(layer + "self_attn.o_proj.weight", {kDim, q});
      if (std::string(attention.model_type) == "qwen3") {
        add(layer + "self_attn.q_norm.weight", {attention.head_dim});
        add(layer + "self_attn.k_norm.weight", {attention.head_dim}, attention.large_k_norm);
      }
      add(layer + "post_attention_layernorm.weight", {kDim});
      if (gemma) {
        add(layer + "pre_feedforward_layernorm.weight", {kDim});
        add(layer + "post_feedforward_layernorm.weight", {kDim});
      }
      add(layer + "mlp.gate_proj.weight", {kFfnDim, kDim});
      add(layer + "mlp.up_proj.weight", {kFfnDim, kDim});
      add(layer + "mlp.down_proj.weight", {kDim, kFfnDim});
    }
    tensors_.write(folder_.path() / "model.safetensors");
  }

  std::string path() const { return folder_.path().string(); }

 private:
  static constexpr std::int64_t kDim = 128;
  static constexpr std::int64_t kFfnDim = 192;
  static constexpr int kLayers = 2;
  static constexpr std::int64_t kVocab = 256;

  /// Matrices whose products are of the size of their inputs; norms of about 1, one weight of it
  /// `large` if that is not 1.
  void add(const std::string& name, const std::vector<std::int64_t>& shape, float large = 1) {
    std::vector<std::uint16_t> values;  // bf16
    const bool is_front = name.find("layernorm") != name.npos;
    const bool is_behind =
        name.find("_proj") != name.npos && shape.back() == kDim && name.find("o_proj") == name.npos;
    const bool norm = shape.size() == 1;
    const std::int64_t count = norm ? shape[0] : shape[0] * shape[1];
    std::normal_distribution<float> normal(
        norm ? 1.0F : 0.0F, norm ? 0.1F : 1.0F / std::sqrt(static_cast<float>(shape[1])));
    for (std::int64_t i = 0; i < count; ++i) {
      float value = normal(random_);
      if (large != 1 && i == count / 3) value = large;
      if (i % shape.back() % 48 == 9) {
        if (is_front) value *= large_norm_;
        if (is_behind) value /= large_norm_;
      }
      values.push_back(static_cast<std::uint16_t>(std::bit_cast<std::uint32_t>(value) >> 16));
    }
    tensors_.add(name, "BF16", shape, std::as_bytes(std::span(values)));
  }

  float large_norm_;
  TemporaryFolder folder_;
  std::mt19937 random_{1};
  SafetensorsWriter tensors_;
};

}  // namespace dendrite::test
