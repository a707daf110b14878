#pragma once

#include <cstdint>
#include <span>

#include "backend/attention_plan.h"
#include "backend/kv_store.h"
#include "backend/rope.h"
#include "backend/tensor.h"
#include "backend/weight.h"

// What the ops of a Backend are given. `tokens`: rows of the call.
namespace dendrite {

/// Arguments of Backend::rope_and_store.
struct RopeStore : Rope {
  Tensor qkv;  // [tokens, (heads + 2 * kv_heads) * head_dim]; the q part is rewritten
  /// [tokens]: page * page_tokens + offset; -1: K and V are not stored.
  std::span<const std::int64_t> slots;
  std::span<const ExtraStore> extra_stores;
  KvStore* kv = nullptr;
  std::int64_t layer = 0;
};

/// Arguments of Backend::attention.
struct AttentionArgs {
  Tensor out;  // [tokens, heads * head_dim], overwritten
  Tensor q;    // [tokens, heads * head_dim], after RoPE
  std::int64_t heads = 0;
  float scale = 1.0f;  // multiplies q . k
  const KvStore* kv = nullptr;
  std::int64_t layer = 0;
  const AttentionPlan* plan = nullptr;  // rows of q beyond the plan's are padding
};

/// Arguments of Backend::attention_sublayer. Tensors marked scratch hold nothing defined
/// afterwards.
struct AttentionSublayer {
  Tensor hidden;                // [tokens, dim], added to
  const float* norm = nullptr;  // device [dim]
  float norm_eps = 0;
  const Weight* qkv = nullptr;      // [(heads + 2 * kv_heads) * head_dim, dim]
  const float* qkv_bias = nullptr;  // device or null
  RopeStore rope;                   // rope.qkv: scratch
  AttentionArgs attention;          // attention.out: scratch; attention.q: columns of rope.qkv
  const Weight* out = nullptr;      // [dim, heads * head_dim]
  const float* out_bias = nullptr;  // device or null
  Tensor normed;                    // scratch [tokens, dim]
};

/// Arguments of Backend::mlp_sublayer.
struct MlpSublayer {
  Tensor hidden;                // [tokens, dim], added to
  const float* norm = nullptr;  // device [dim]
  float norm_eps = 0;
  const Weight* gate_up = nullptr;      // [2 * ffn_dim, dim]
  const float* gate_up_bias = nullptr;  // device or null
  const Weight* down = nullptr;         // [dim, ffn_dim]
  const float* down_bias = nullptr;     // device or null
  Tensor normed;                        // scratch [tokens, dim]
  Tensor gate_up_out;                   // scratch [tokens, 2 * ffn_dim]
  Tensor act;                           // scratch [tokens, ffn_dim]
};

/// Arguments of Backend::norm_matmul.
struct NormMatmul {
  Tensor out;                          // [rows.size(), rows of weight], overwritten
  Tensor x;                            // [any, dim]
  std::span<const std::int32_t> rows;  // of x
  const float* norm = nullptr;         // device [dim]
  float norm_eps = 0;
  const Weight* weight = nullptr;  // [out.cols, dim]
  Tensor gathered;                 // scratch [rows.size(), dim]
};

}  // namespace dendrite
