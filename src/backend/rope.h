#pragma once

#include <cstdint>

namespace dendrite {

/// How the heads of q and k are rotated: what rope_and_store is told, and hands on to its kernels,
/// on every device. Plain data, for kernels of all instruction sets.
struct Rope {
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t rotary_dim = 0;     // even, <= head_dim; later dims pass through
  const float* cos_sin = nullptr;  // device [tokens, rotary_dim]: rotary_dim/2 cosines, then sines
  const float* q_norm = nullptr;   // device [head_dim] or null: RMSNorm of each head before RoPE
  const float* k_norm = nullptr;
  const float* v_norm = nullptr;  // the same of each head of v, which is not rotated
  float norm_eps = 0;
};

}  // namespace dendrite
