#pragma once

#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "io/model_folder.h"
#include "model/config.h"

namespace dendrite {

/// The weights of a decoder on its device. q, k, v are one matrix, and so are gate and up: one read
/// of the activations each.
struct DecoderWeights {
  struct Layer {
    std::unique_ptr<Buffer> attn_norm;  // [dim]
    std::unique_ptr<Weight> qkv;        // [(heads + 2 * kv_heads) * head_dim, dim]
    std::unique_ptr<Buffer> qkv_bias;   // [(heads + 2 * kv_heads) * head_dim] or null
    std::unique_ptr<Buffer> q_norm;     // [head_dim] or null
    std::unique_ptr<Buffer> k_norm;
    std::unique_ptr<Weight> out;           // [dim, heads * head_dim]
    std::unique_ptr<Buffer> out_bias;      // [dim] or null
    std::unique_ptr<Buffer> mlp_norm;      // [dim]
    std::unique_ptr<Weight> gate_up;       // [2 * ffn_dim, dim]
    std::unique_ptr<Buffer> gate_up_bias;  // [2 * ffn_dim] or null
    std::unique_ptr<Weight> down;          // [dim, ffn_dim]
    std::unique_ptr<Buffer> down_bias;     // [dim] or null
  };
  std::unique_ptr<Weight> embedding;  // [vocab, dim]
  std::vector<Layer> layers;
  std::unique_ptr<Buffer> final_norm;  // [dim]
  std::unique_ptr<Weight> output;      // [vocab, dim]; null: the embedding is used

  const Weight& output_matrix() const { return output ? *output : *embedding; }
  std::int64_t parameters = 0;
  std::int64_t size_bytes = 0;  // on the device
};

/// Reads, checks and packs all tensors. Throws Error naming the tensor and its file: missing, of
/// another shape or type than the config says, or holding NaN or infinity.
DecoderWeights load_weights(const ModelFolder& folder, const DecoderConfig& config,
                            Backend& backend);

/// Random weights of the same shapes, made in place, for speed tests only.
DecoderWeights dummy_weights(const DecoderConfig& config, Backend& backend);

}  // namespace dendrite
