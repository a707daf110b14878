#pragma once

#include <optional>

#include "backend/ops.h"
#include "model/parts/attention_shape.h"
#include "model/parts/buffers.h"
#include "model/parts/latent_shape.h"
#include "model/parts/recurrent_sizes.h"

namespace dendrite {

/// Rows of so many columns, one behind the other, in the memory of scratch that is at least as
/// wide.
inline Tensor packed(Tensor scratch, std::int64_t rows, std::int64_t cols) {
  return {scratch.data, rows, cols, cols};
}

/// Device memory that the parts of a model's layers use one after the other.
struct LayerScratch {
  Tensor normed;        // [max_rows, dim]
  Tensor qkv;           // [max_rows, AttentionShape::columns()], or LatentShape::qk_columns()
  Tensor attended;      // [max_rows, heads * head_dim]
  Tensor gated;         // the same, of attention with gates
  Tensor latent_in;     // [max_rows, LatentShape::in_columns()], where there is such attention
  Tensor query_latent;  // [max_rows, query_rank]
  Tensor queries;       // [max_rows, heads * query_dim()]
  Tensor head_values;   // [max_rows, heads * value_dim]
  Tensor mixer_in;      // [max_rows, RecurrentSizes::in_columns], where there are such layers
  Tensor mixer_out;     // [max_rows, RecurrentSizes::out_columns]
  Tensor gate_up;       // [max_rows, 2 * the widest ffn_dim]
  Tensor act;           // [max_rows, the widest ffn_dim]
  Tensor router;        // [max_rows, Routing::logits()], where there are mixtures of experts
  Tensor expert_in;     // [max_rows, dim]
  Tensor expert_out;    // [max_rows, dim]
  Tensor expert_sum;    // [max_rows, dim], where they stand beside a dense MLP
  Tensor sum;           // the same
  Tensor zeros;         // the same; nobody writes to it
};

/// `ffn_dim`: of the widest layer. `recurrent`, `routing`, `latent`: none where no layer is such.
/// `beside`: mixtures stand beside a dense MLP.
inline LayerScratch layer_scratch(Buffers& buffers, std::int64_t max_rows,
                                  const AttentionWidths& attention, std::int64_t ffn_dim,
                                  const std::optional<RecurrentSizes>& recurrent = {},
                                  const std::optional<Routing>& routing = {},
                                  const std::optional<LatentShape>& latent = {},
                                  bool beside = false) {
  LayerScratch scratch;
  scratch.normed = buffers.make(max_rows, attention.dim);
  scratch.qkv = buffers.make(max_rows, attention.columns);
  scratch.attended = buffers.make(max_rows, attention.q_columns);
  if (attention.gate) scratch.gated = buffers.make(max_rows, attention.q_columns);
  if (latent) {
    scratch.latent_in = buffers.make(max_rows, latent->in_columns());
    if (latent->query_rank > 0) {
      scratch.query_latent = buffers.make(max_rows, latent->query_rank);
      scratch.queries = buffers.make(max_rows, latent->heads * latent->query_dim());
    }
    scratch.head_values = buffers.make(max_rows, latent->heads * latent->value_dim);
  }
  if (recurrent) {
    scratch.mixer_in = buffers.make(max_rows, recurrent->in_columns);
    scratch.mixer_out = buffers.make(max_rows, recurrent->out_columns);
  }
  if (routing) {
    scratch.router = buffers.make(max_rows, routing->logits());
    scratch.expert_in = buffers.make(max_rows, attention.dim);
    scratch.expert_out = buffers.make(max_rows, attention.dim);
  }
  if (beside) {
    scratch.expert_sum = buffers.make(max_rows, attention.dim);
    scratch.sum = buffers.make(max_rows, attention.dim);
    scratch.zeros = buffers.make(max_rows, attention.dim);
  }
  scratch.gate_up = buffers.make(max_rows, 2 * ffn_dim);
  scratch.act = buffers.make(max_rows, ffn_dim);
  return scratch;
}

}  // namespace dendrite
