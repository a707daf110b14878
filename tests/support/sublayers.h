#pragma once

#include "backend/backend.h"

// The two halves of a decoder layer as the model runs them, and op by op.

namespace dendrite::test {

/// hidden += W_out * attention(rope(W_qkv * rms_norm(hidden))); K and V are stored.
struct AttentionSublayer {
  Tensor hidden;  // [tokens, dim]
  const float* norm = nullptr;
  float norm_eps = 0;
  const Weight* qkv = nullptr;
  const float* qkv_bias = nullptr;
  RopeStore rope;           // rope.qkv: scratch
  AttentionArgs attention;  // attention.out: a tensor, scratch
  const Weight* out = nullptr;
  const float* out_bias = nullptr;
  Tensor normed;  // scratch [tokens, dim]

  void run(Backend& backend) const {
    Product first;
    first.weight = qkv;
    first.bias = qkv_bias;
    first.in = qkv->input(normed);
    first.x = hidden;
    first.norm = norm;
    first.norm_eps = norm_eps;
    first.epilogue = Epilogue::kRope;
    first.out = rope.qkv;
    first.rope = &rope;
    backend.product(first);
    AttentionArgs attend = attention;
    attend.out = out->input(attention.out.tensor());
    backend.attention(attend);
    Product second;
    second.weight = out;
    second.bias = out_bias;
    second.in = attend.out;
    second.epilogue = Epilogue::kAdd;
    second.out = hidden;
    backend.product(second);
  }
  void run_ops(Backend& backend) const {
    backend.rms_norm(normed, hidden, norm, norm_eps);
    backend.matmul(rope.qkv, normed, *qkv, qkv_bias, Backend::Store::kOverwrite);
    backend.rope_and_store(rope);
    backend.attention(attention);
    backend.matmul(hidden, attention.out.tensor(), *out, out_bias, Backend::Store::kAdd);
  }
};

/// hidden += W_down * silu_mul(W_gate_up * rms_norm(hidden)).
struct MlpSublayer {
  Tensor hidden;  // [tokens, dim]
  const float* norm = nullptr;
  float norm_eps = 0;
  const Weight* gate_up = nullptr;
  const float* gate_up_bias = nullptr;
  const Weight* down = nullptr;
  const float* down_bias = nullptr;
  Tensor normed;       // scratch [tokens, dim]
  Tensor gate_up_out;  // scratch [tokens, 2 * ffn_dim]
  Tensor act;          // scratch [tokens, ffn_dim]

  void run(Backend& backend) const {
    Product first;
    first.weight = gate_up;
    first.bias = gate_up_bias;
    first.in = gate_up->input(normed);
    first.x = hidden;
    first.norm = norm;
    first.norm_eps = norm_eps;
    first.epilogue = Epilogue::kSiluMul;
    first.out = gate_up_out;
    first.act = down->input(act);
    backend.product(first);
    Product second;
    second.weight = down;
    second.bias = down_bias;
    second.in = first.act;
    second.epilogue = Epilogue::kAdd;
    second.out = hidden;
    backend.product(second);
  }
};

}  // namespace dendrite::test
