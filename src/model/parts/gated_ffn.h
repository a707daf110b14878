#pragma once

#include <cstdint>
#include <string>

#include "model/parts/layer.h"
#include "model/parts/layer_norms.h"
#include "model/parts/linear.h"
#include "model/parts/scratch.h"
#include "model/parts/tensor_names.h"
#include "model/parts/weight_source.h"

namespace dendrite {

struct GatedFfnShape {
  std::int64_t dim = 0;
  std::int64_t ffn_dim = 0;
  bool bias = false;
  float norm_eps = 0;
  bool zero_centred = false;  // weights of the norms are 1 + what is stored
  bool fused = false;         // gates and ups are one tensor: MlpNames::fused
  bool squared_relu = false;  // there are no gates: down(max(up(x), 0)^2)
  Activation activation{};
  float residual = 1;  // what is given to the stream is times this
  LayerNorms norms{};
  MlpNames names{};
};

/// gate and up are one matrix: one read of the activations.
struct GatedFfnWeights {
  Norm norm;
  Linear gate_up;  // [2 * ffn_dim, dim], or [ffn_dim, dim] without gates
  Linear down;     // [dim, ffn_dim]
  Join join;
  Activation activation{};
  bool squared_relu = false;

  /// By Hugging Face's names behind `prefix`, which ends in a dot.
  static GatedFfnWeights read(WeightSource& source, const std::string& prefix,
                              const GatedFfnShape& shape);
};

/// W_down * (silu(W_gate x) * W_up x), or with another activation, or without gates. Source:
/// Shazeer 2020, arXiv:2002.05202.
class GatedFfn final : public FeedForward {
 public:
  /// `scratch` outlives it.
  GatedFfn(GatedFfnWeights weights, Backend& backend, const LayerScratch& scratch);
  void add(Tensor hidden) override { add_to(hidden, hidden); }
  /// The same to another stream [tokens, dim].
  void add_to(Tensor out, Tensor hidden);

 private:
  GatedFfnWeights weights_;
  Backend& backend_;
  const LayerScratch& scratch_;
};

}  // namespace dendrite
