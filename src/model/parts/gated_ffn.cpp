#include "model/parts/gated_ffn.h"

#include <utility>

#include "model/parts/norm.h"

namespace dendrite {
namespace {

/// Gates, then ups, by what their tensors' names end in. A file may hold two tensors where its
/// family has one.
std::vector<WeightSource::Part> parts_of(const WeightSource& source, const std::string& prefix,
                                         const char* kind, const GatedFfnShape& s) {
  const auto part = [&](const std::string& matrix) {
    return prefix + s.names.block + matrix + "." + kind;
  };
  if (s.squared_relu) return {{part(s.names.up), s.ffn_dim}};
  const bool parted =
      source.checkpoint() != nullptr && source.checkpoint()->find(part(s.names.gate)) != nullptr;
  if (s.fused && !parted) return {{part(s.names.fused), 2 * s.ffn_dim}};
  return {{part(s.names.gate), s.ffn_dim}, {part(s.names.up), s.ffn_dim}};
}

}  // namespace

GatedFfnWeights GatedFfnWeights::read(WeightSource& source, const std::string& prefix,
                                      const GatedFfnShape& s) {
  GatedFfnWeights weights;
  NormNames norms;
  norms.zero_centred = s.zero_centred;
  weights.norm = read_norm(source, prefix, s.norms.before_ffn, s.dim, s.norm_eps, s.zero_centred);
  if (!s.norms.before_ffn.empty()) norms.before = prefix + s.norms.before_ffn + ".weight";
  Split split{Split::Of::kOutputs, {s.ffn_dim}};
  if (!s.squared_relu) split.runs.push_back(s.ffn_dim);
  weights.gate_up.weight =
      source.matrix(parts_of(source, prefix, "weight", s), s.dim, norms, false, split);
  const std::string down = prefix + s.names.block + s.names.down + ".";
  weights.down.weight =
      source.matrix({{down + "weight", s.dim}}, s.ffn_dim, {}, false, {Split::Of::kInputs});
  if (s.bias) {
    weights.gate_up.bias = source.vector(parts_of(source, prefix, "bias", s), 0.0F, nullptr, split);
    weights.down.bias = source.vector({{down + "bias", s.dim}}, 0.0F);
  }
  weights.join.norm =
      read_norm(source, prefix, s.norms.behind_ffn, s.dim, s.norm_eps, s.zero_centred);
  weights.join.factor = s.residual;
  weights.activation = s.activation;
  weights.squared_relu = s.squared_relu;
  return weights;
}

GatedFfn::GatedFfn(GatedFfnWeights weights, Backend& backend, const LayerScratch& scratch)
    : weights_(std::move(weights)), backend_(backend), scratch_(scratch) {}

void GatedFfn::add_to(Tensor out, Tensor hidden) {
  const Tensor normed = scratch_.normed.first_rows(hidden.rows);
  const Tensor act = packed(scratch_.act, hidden.rows, weights_.down.weight->cols());
  Product gate_up = weights_.gate_up.product(weights_.gate_up.input(normed));
  weights_.norm.before(gate_up, hidden);
  gate_up.out = packed(scratch_.gate_up, hidden.rows, weights_.gate_up.weight->rows());
  const bool silu = weights_.activation.kind == Activation::Kind::kSilu && !weights_.squared_relu;
  if (silu) {
    gate_up.epilogue = Epilogue::kSiluMul;
    gate_up.act = weights_.down.input(act);
  }
  backend_.product(gate_up);
  if (weights_.squared_relu) {
    backend_.squared_relu(gate_up.out);
  } else if (!silu) {
    backend_.activate(act, gate_up.out, weights_.activation);
  }

  const Rows plain(weights_.squared_relu ? gate_up.out : act);
  Product down = weights_.down.product(silu ? gate_up.act : plain);
  weights_.join.add(down, out, normed, backend_);
}

}  // namespace dendrite
