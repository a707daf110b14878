#pragma once

#include <cstdint>

namespace dendrite {

struct AttentionShape {
  std::int64_t dim = 0;
  std::int64_t heads = 0;
  std::int64_t kv_heads = 0;
  std::int64_t head_dim = 0;
  std::int64_t rotary_dim = 0;
  bool bias = false;  // of q, k and v
  bool out_bias = false;
  bool qk_norm = false;  // RMSNorm of each head of q and k, before RoPE
  float norm_eps = 0;
};

}  // namespace dendrite
