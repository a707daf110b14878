#include "model/parts/gated_ffn.h"

#include <utility>

namespace dendrite {

GatedFfnWeights GatedFfnWeights::read(WeightSource& source, const std::string& prefix,
                                      const GatedFfnShape& s) {
  const auto name = [&prefix](const char* rest) { return prefix + rest; };
  GatedFfnWeights weights;
  NormNames norms{name("post_attention_layernorm.weight")};
  norms.zero_centred = s.zero_centred;
  weights.norm = {source.vector({{norms.before, s.dim}}, 1.0F, change_of(s.zero_centred)),
                  s.norm_eps};
  weights.gate_up.weight = source.matrix(
      {{name("mlp.gate_proj.weight"), s.ffn_dim}, {name("mlp.up_proj.weight"), s.ffn_dim}}, s.dim,
      norms);
  weights.down.weight = source.matrix({{name("mlp.down_proj.weight"), s.dim}}, s.ffn_dim);
  if (s.bias) {
    weights.gate_up.bias = source.vector(
        {{name("mlp.gate_proj.bias"), s.ffn_dim}, {name("mlp.up_proj.bias"), s.ffn_dim}}, 0.0F);
    weights.down.bias = source.vector({{name("mlp.down_proj.bias"), s.dim}}, 0.0F);
  }
  return weights;
}

GatedFfn::GatedFfn(GatedFfnWeights weights, Backend& backend, const LayerScratch& scratch)
    : weights_(std::move(weights)), backend_(backend), scratch_(scratch) {}

void GatedFfn::add(Tensor hidden) {
  Product gate_up =
      weights_.gate_up.product(weights_.gate_up.input(scratch_.normed.first_rows(hidden.rows)));
  weights_.norm.before(gate_up, hidden);
  gate_up.epilogue = Epilogue::kSiluMul;
  gate_up.out = scratch_.gate_up.first_rows(hidden.rows);
  gate_up.act = weights_.down.input(scratch_.act.first_rows(hidden.rows));
  backend_.product(gate_up);

  Product down = weights_.down.product(gate_up.act);
  down.epilogue = Epilogue::kAdd;
  down.out = hidden;
  backend_.product(down);
}

}  // namespace dendrite
