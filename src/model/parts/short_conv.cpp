#include "model/parts/short_conv.h"

#include <utility>

#include "model/parts/norm.h"

namespace dendrite {

ShortConvWeights ShortConvWeights::read(WeightSource& source, const std::string& prefix,
                                        const ShortConvShape& s) {
  const auto name = [&prefix](const char* rest) { return prefix + "conv." + rest; };
  const auto bias = [&](const char* tensor, std::int64_t rows) {
    return s.bias ? source.vector({{name(tensor), rows}}, 0.0F) : nullptr;
  };
  const NormNames norms{prefix + s.norms.before_mixer + ".weight"};
  ShortConvWeights weights;
  weights.norm = read_norm(source, prefix, s.norms.before_mixer, s.channels, s.norm_eps, false);
  weights.in.weight = source.matrix({{name("in_proj.weight"), s.in_columns()}}, s.channels, norms);
  weights.in.bias = bias("in_proj.bias", s.in_columns());
  weights.conv = source.vector({{.name = name("conv.weight"),
                                 .rows = s.channels * s.taps,
                                 .shape = {s.channels, 1, s.taps}}},
                               0.5F);
  weights.conv_bias = bias("conv.bias", s.channels);
  weights.out.weight = source.matrix({{name("out_proj.weight"), s.channels}}, s.channels);
  weights.out.bias = bias("out_proj.bias", s.channels);
  weights.join.norm =
      read_norm(source, prefix, s.norms.behind_mixer, s.channels, s.norm_eps, false);
  return weights;
}

ShortConvMixer::ShortConvMixer(const ShortConvShape& shape, ShortConvWeights weights,
                               std::int64_t layer, Backend& backend, const LayerScratch& scratch)
    : shape_(shape),
      weights_(std::move(weights)),
      layer_(layer),
      backend_(backend),
      scratch_(scratch) {}

Rows ShortConvMixer::out_rows(std::int64_t rows) const {
  return weights_.out.input(scratch_.mixer_out.first_rows(rows));
}

void ShortConvMixer::keep(Tensor hidden, const PassInputs& pass) {
  Product in = weights_.in.product(weights_.in.input(scratch_.normed.first_rows(hidden.rows)));
  weights_.norm.before(in, hidden);
  in.out = scratch_.mixer_in.first_rows(hidden.rows);
  backend_.product(in);

  ShortConv conv{shape_};
  conv.in = in.out;
  conv.conv = weights_.conv->data();
  conv.bias = data_or_null(weights_.conv_bias);
  conv.out = out_rows(hidden.rows);
  conv.states = pass.states;
  conv.layer = layer_;
  conv.plan = pass.recurrence;
  backend_.short_conv(conv);
}

void ShortConvMixer::add(Tensor hidden, const PassInputs& pass) {
  keep(hidden, pass);
  Product out = weights_.out.product(out_rows(hidden.rows));
  weights_.join.add(out, hidden, scratch_.normed.first_rows(hidden.rows), backend_);
}

}  // namespace dendrite
