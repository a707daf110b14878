#pragma once

#include <algorithm>
#include <cstdint>

#include "model/parts/layer_norms.h"
#include "model/parts/tensor_names.h"

namespace dendrite {

struct AttentionShape {
  std::int64_t dim = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;  // 0: K and V are an earlier layer's
  std::int64_t head_dim = 0;
  std::int64_t rotary_dim = 0;
  bool bias = false;  // of q, k and v
  bool out_bias = false;
  bool qk_norm = false;       // RMSNorm of q and k before RoPE, of each head
  bool qk_whole = false;      // ... of all heads together
  bool qk_plain = false;      // ... of each head without weights
  bool value_norm = false;    // the same of each head of v, without weights
  bool value_is_key = false;  // v is what k is before its norm and RoPE
  bool gate = false;  // what is attended is multiplied by sigmoid(W_gate x) before it goes out
  bool zero_centred = false;  // weights of the norms are 1 + what is stored
  float norm_eps = 0;
  bool fused = false;  // q, k and v are one tensor: qkv_proj
  bool pairs = false;  // stored so that the pairs that RoPE turns lie beside each other
  float scale = 0;     // of q . k; 0: 1 / sqrt(head_dim)
  float soft_cap = 0;  // AttentionArgs::soft_cap
  bool sinks = false;  // AttentionArgs::sinks
  float residual = 1;  // what is given to the stream is times this
  LayerNorms norms{};
  AttentionNames names{};
  bool head_gate = false;  // as `gate`, but one a head: W_gate [heads, dim] is a tensor

  std::int64_t q_columns() const { return heads * head_dim; }
  std::int64_t qkv_columns() const { return (heads + 2 * kv_heads) * head_dim; }
  std::int64_t gate_columns() const { return gate ? q_columns() : head_gate ? heads : 0; }
  /// Of the first product: q, k and v, then the gates of q's columns, or of its heads.
  std::int64_t columns() const { return qkv_columns() + gate_columns(); }
};

/// What scratch for attention depends on, of layers that may differ: the most of each.
struct AttentionWidths {
  std::int64_t dim = 0;
  std::int64_t columns = 0;
  std::int64_t q_columns = 0;
  bool gate = false;

  void include(const AttentionShape& shape) {
    dim = shape.dim;
    columns = std::max(columns, shape.columns());
    q_columns = std::max(q_columns, shape.q_columns());
    gate = gate || shape.gate_columns() > 0;
  }
};
inline AttentionWidths widths_of(const AttentionShape& shape) {
  AttentionWidths widths;
  widths.include(shape);
  return widths;
}

}  // namespace dendrite
