#pragma once

#include <algorithm>
#include <cstdint>

#include "backend/ops.h"

namespace dendrite {

/// What a mixture of experts is.
struct ExpertsSizes {
  Routing routing;
  std::int64_t ffn_dim = 0;         // of an expert
  std::int64_t shared_ffn_dim = 0;  // of the shared one, where there is one

  std::int64_t widest() const { return std::max(ffn_dim, shared_ffn_dim); }
};

/// How the tensors of a mixture are called behind a layer's prefix.
enum class ExpertNames : std::uint8_t {
  kMlp,        // mlp.gate, mlp.experts.0.gate_proj, up_proj, down_proj, mlp.shared_expert
  kSparseMoe,  // block_sparse_moe.gate, block_sparse_moe.experts.0.w1, w3, w2
};

struct ExpertsShape : ExpertsSizes {
  std::int64_t dim = 0;
  ExpertNames names = ExpertNames::kMlp;
  float norm_eps = 0;
  bool zero_centred = false;  // weights of the norm are 1 + what is stored
};

}  // namespace dendrite
