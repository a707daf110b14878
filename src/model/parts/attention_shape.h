#pragma once

#include <cstdint>

#include "model/parts/layer_norms.h"

namespace dendrite {

struct AttentionShape {
  std::int64_t dim = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t rotary_dim = 0;
  bool bias = false;  // of q, k and v
  bool out_bias = false;
  bool qk_norm = false;   // RMSNorm of q and k before RoPE, of each head
  bool qk_whole = false;  // ... of all heads together
  bool gate = false;      // what is attended is multiplied by sigmoid(W_gate x) before it goes out
  bool zero_centred = false;  // weights of the norms are 1 + what is stored
  float norm_eps = 0;
  bool fused = false;  // q, k and v are one tensor: qkv_proj
  bool pairs = false;  // stored so that the pairs that RoPE turns lie beside each other
  float scale = 0;     // of q . k; 0: 1 / sqrt(head_dim)
  float soft_cap = 0;  // AttentionArgs::soft_cap
  bool sinks = false;  // AttentionArgs::sinks
  float residual = 1;  // what is given to the stream is times this
  LayerNorms norms{};

  std::int64_t q_columns() const { return heads * head_dim; }
  std::int64_t qkv_columns() const { return (heads + 2 * kv_heads) * head_dim; }
  /// Of the first product: q, k and v, then the gates of q's columns.
  std::int64_t columns() const { return qkv_columns() + (gate ? q_columns() : 0); }
};

}  // namespace dendrite
