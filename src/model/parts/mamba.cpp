#include "model/parts/mamba.h"

#include <cmath>
#include <utility>

#include "model/parts/norm.h"

namespace dendrite {

MambaWeights MambaWeights::read(WeightSource& source, const std::string& prefix,
                                const MambaShape& s) {
  const auto name = [&](const char* rest) { return prefix + s.block + rest; };
  const auto bias = [&](const char* tensor, std::int64_t rows, bool there) {
    return there ? source.vector({{name(tensor), rows}}, 0.0F) : nullptr;
  };
  const NormNames norms{prefix + s.norms.before_mixer + ".weight"};
  MambaWeights weights;
  weights.norm = read_norm(source, prefix, s.norms.before_mixer, s.dim, s.norm_eps, false);
  weights.in.weight = source.matrix({{name("in_proj.weight"), s.in_columns()}}, s.dim, norms);
  weights.in.bias = bias("in_proj.bias", s.in_columns(), s.bias);
  weights.conv = source.vector({{.name = name("conv1d.weight"),
                                 .rows = s.channels() * s.taps,
                                 .shape = {s.channels(), 1, s.taps}}},
                               0.5F);
  weights.conv_bias = bias("conv1d.bias", s.channels(), s.conv_bias);
  // GGUF files hold what comes of the logarithm, negative.
  const bool worked_out =
      source.checkpoint() != nullptr && source.checkpoint()->find(name("minus_decay")) != nullptr;
  weights.decay = worked_out ? source.vector({{name("minus_decay"), s.heads}}, 1.0F,
                                             [](float stored) { return -stored; })
                             : source.vector({{name("A_log"), s.heads}}, 1.0F,
                                             [](float stored) { return std::exp(stored); });
  weights.dt_bias = source.vector({{name("dt_bias"), s.heads}}, 1.0F);
  weights.skip = source.vector({{name("D"), s.heads}}, 1.0F);
  weights.out_norm = source.vector({{name("norm.weight"), s.out_columns()}}, 1.0F);
  weights.out.weight = source.matrix({{name("out_proj.weight"), s.dim}}, s.out_columns());
  weights.out.bias = bias("out_proj.bias", s.dim, s.bias);
  weights.join.norm = read_norm(source, prefix, s.norms.behind_mixer, s.dim, s.norm_eps, false);
  weights.join.factor = s.residual;
  return weights;
}

MambaMixer::MambaMixer(const MambaShape& shape, MambaWeights weights, std::int64_t layer,
                       Backend& backend, const LayerScratch& scratch)
    : shape_(shape),
      weights_(std::move(weights)),
      layer_(layer),
      backend_(backend),
      scratch_(scratch) {}

Rows MambaMixer::out_rows(std::int64_t rows) const {
  return weights_.out.input(scratch_.mixer_out.first_rows(rows));
}

void MambaMixer::keep(Tensor hidden, const PassInputs& pass) {
  Product in = weights_.in.product(weights_.in.input(scratch_.normed.first_rows(hidden.rows)));
  weights_.norm.before(in, hidden);
  in.out = scratch_.mixer_in.first_rows(hidden.rows);
  backend_.product(in);

  Mamba mamba{shape_};
  mamba.in = in.out;
  mamba.conv = weights_.conv->data();
  mamba.conv_bias = data_or_null(weights_.conv_bias);
  mamba.decay = weights_.decay->data();
  mamba.dt_bias = weights_.dt_bias->data();
  mamba.skip = weights_.skip->data();
  mamba.norm = weights_.out_norm->data();
  mamba.norm_eps = shape_.norm_eps;
  mamba.least_dt = shape_.least_dt;
  mamba.most_dt = shape_.most_dt;
  mamba.out = out_rows(hidden.rows);
  mamba.states = pass.states;
  mamba.layer = layer_;
  mamba.plan = pass.recurrence;
  backend_.mamba(mamba);
}

void MambaMixer::add(Tensor hidden, const PassInputs& pass) {
  keep(hidden, pass);
  Product out = weights_.out.product(out_rows(hidden.rows));
  weights_.join.add(out, hidden, scratch_.normed.first_rows(hidden.rows), backend_);
}

}  // namespace dendrite
