#pragma once

#include <algorithm>
#include <cstdint>
#include <string>

#include "backend/ops.h"
#include "model/parts/layer_norms.h"

namespace dendrite {

/// What a mixture of experts is.
struct ExpertsSizes {
  Routing routing;
  std::int64_t ffn_dim = 0;         // of an expert
  std::int64_t shared_ffn_dim = 0;  // of the shared one, where there is one

  std::int64_t widest() const { return std::max(ffn_dim, shared_ffn_dim); }
};

/// How the tensors of a mixture are called behind a layer's prefix and `block`.
struct ExpertNames {
  std::string block = "mlp.";
  std::string router = "gate.weight";
  std::string router_bias{};       // empty: there is none
  std::string correction{};        // Experts::correction; empty: there is none
  std::string factors{};           // Experts::factors; empty: there are none
  std::string router_norm{};       // of a norm of the router's own; empty: it has the experts'
  std::string gate = "gate_proj";  // experts.0.gate_proj.weight
  std::string up = "up_proj";
  std::string down = "down_proj";
  std::string fused_gate_up = "experts.gate_up_proj";  // of all experts
  std::string fused_down = "experts.down_proj";
  std::string shared = "shared_expert.";
  /// As gpt-oss has them: all experts' in one tensor, gates and ups in turns, plain ones with
  /// columns as rows, biases of each beside.
  bool in_turns = false;
  bool transposed = false;  // those of all experts hold columns as rows, gates first
  bool in_mxfp4 = false;    // the config says so, and dummy ones are
};

struct ExpertsShape : ExpertsSizes {
  std::int64_t dim = 0;
  ExpertNames names{};
  float norm_eps = 0;
  bool zero_centred = false;  // weights of the norm are 1 + what is stored
  LayerNorms norms{};
  Activation activation{};
  bool squared_relu = false;  // Experts::squared_relu
};

}  // namespace dendrite
