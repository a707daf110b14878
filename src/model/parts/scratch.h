#pragma once

#include "model/parts/attention_shape.h"
#include "model/parts/buffers.h"

namespace dendrite {

/// Device memory that the parts of a model's layers use one after the other.
struct LayerScratch {
  Tensor normed;    // [max_rows, dim]
  Tensor qkv;       // [max_rows, (heads + 2 * kv_heads) * head_dim]
  Tensor attended;  // [max_rows, heads * head_dim]
  Tensor gate_up;   // [max_rows, 2 * ffn_dim]
  Tensor act;       // [max_rows, ffn_dim]
};

inline LayerScratch layer_scratch(Buffers& buffers, std::int64_t max_rows,
                                  const AttentionShape& attention, std::int64_t ffn_dim) {
  LayerScratch scratch;
  scratch.normed = buffers.make(max_rows, attention.dim);
  scratch.qkv =
      buffers.make(max_rows, (attention.heads + 2 * attention.kv_heads) * attention.head_dim);
  scratch.attended = buffers.make(max_rows, attention.heads * attention.head_dim);
  scratch.gate_up = buffers.make(max_rows, 2 * ffn_dim);
  scratch.act = buffers.make(max_rows, ffn_dim);
  return scratch;
}

}  // namespace dendrite
