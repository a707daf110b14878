#include "model/parts/delta_net.h"

#include <cmath>
#include <utility>
#include <vector>

namespace dendrite {

namespace {

/// What goes in: what is convolved (queries, keys, values), gates, how much is written and how much
/// decays.
std::vector<WeightSource::Part> parts_in(const Checkpoint* checkpoint, const std::string& prefix,
                                         const DeltaNetShape& s) {
  const std::string in = prefix + "linear_attn.in_proj_";
  std::vector<WeightSource::Part> parts{{in + "qkv.weight", s.channels()},
                                        {in + "z.weight", s.out_columns()}};
  if (!s.by_key_head) {
    parts.push_back({in + "b.weight", s.value_heads});
    parts.push_back({in + "a.weight", s.value_heads});
    return parts;
  }
  const std::int64_t heads = s.value_heads / s.key_heads;
  const std::int64_t values = heads * s.value_dim;
  // GGUF files have but the others by key head.
  const bool apart = checkpoint != nullptr && checkpoint->find(parts.front().name) != nullptr;
  if (!apart) parts.clear();
  const auto add = [&](const char* tensor, const std::vector<std::int64_t>& turns) {
    for (std::size_t kind = 0; kind < turns.size(); ++kind) {
      parts.push_back(
          {.name = in + tensor, .rows = s.key_heads * turns[kind], .turns = turns, .kind = kind});
    }
  };
  if (!apart) add("qkvz.weight", {s.key_dim, s.key_dim, values, values});
  add("ba.weight", {heads, heads});
  return parts;
}

/// GGUF files hold what comes of the logarithm, negative.
std::unique_ptr<Buffer> read_decay(WeightSource& source, const std::string& prefix,
                                   const DeltaNetShape& s) {
  const std::string worked_out = prefix + "linear_attn.minus_decay";
  if (source.checkpoint() != nullptr && source.checkpoint()->find(worked_out) != nullptr) {
    return source.vector({{worked_out, s.value_heads}}, 1.0F, [](float stored) { return -stored; });
  }
  return source.vector({{prefix + "linear_attn.A_log", s.value_heads}}, 1.0F,
                       [](float stored) { return std::exp(stored); });
}

/// Kimi's: each of queries, keys and values has a matrix and a convolution of its own.
DeltaNetWeights read_by_channel(WeightSource& source, const std::string& prefix,
                                const DeltaNetShape& s) {
  const std::string own = prefix + "self_attn.";
  const std::int64_t keys = s.key_heads * s.key_dim;
  const NormNames norms{prefix + "input_layernorm.weight"};
  const auto taps = [&](const char* name, std::int64_t channels) {
    return WeightSource::Part{
        .name = own + name, .rows = channels * s.taps, .shape = {channels, 1, s.taps}};
  };
  DeltaNetWeights weights;
  weights.norm = {source.vector({{norms.before, s.dim}}, 1.0F), s.norm_eps};
  weights.in.weight = source.matrix({{own + "f_a_proj.weight", s.key_dim},
                                     {own + "g_a_proj.weight", s.key_dim},
                                     {own + "q_proj.weight", keys},
                                     {own + "k_proj.weight", keys},
                                     {own + "v_proj.weight", s.out_columns()},
                                     {own + "b_proj.weight", s.value_heads}},
                                    s.dim, norms);
  weights.decays.weight = source.matrix({{own + "f_b_proj.weight", keys}}, s.key_dim);
  weights.gates.weight = source.matrix({{own + "g_b_proj.weight", s.out_columns()}}, s.key_dim);
  weights.conv = source.vector({taps("q_conv1d.weight", keys), taps("k_conv1d.weight", keys),
                                taps("v_conv1d.weight", s.out_columns())},
                               0.5F);
  weights.decay = source.vector(
      {{.name = own + "A_log", .rows = s.value_heads, .shape = {1, 1, s.value_heads, 1}}}, 1.0F,
      [](float stored) { return std::exp(stored); });
  weights.dt_bias = source.vector({{own + "dt_bias", keys}}, 1.0F);
  weights.out_norm = source.vector({{own + "o_norm.weight", s.value_dim}}, 1.0F);
  weights.out.weight = source.matrix({{own + "o_proj.weight", s.dim}}, s.out_columns());
  return weights;
}

}  // namespace

DeltaNetWeights DeltaNetWeights::read(WeightSource& source, const std::string& prefix,
                                      const DeltaNetShape& s) {
  if (s.by_channel) return read_by_channel(source, prefix, s);
  const auto name = [&prefix](const char* rest) { return prefix + rest; };
  const std::int64_t channels = s.channels();
  NormNames norms{name("input_layernorm.weight")};
  norms.zero_centred = s.zero_centred;
  DeltaNetWeights weights;
  weights.norm = {source.vector({{norms.before, s.dim}}, 1.0F, change_of(s.zero_centred)),
                  s.norm_eps};
  weights.in.weight = source.matrix(parts_in(source.checkpoint(), prefix, s), s.dim, norms);
  weights.conv = source.vector({{.name = name("linear_attn.conv1d.weight"),
                                 .rows = channels * s.taps,
                                 .shape = {channels, 1, s.taps}}},
                               0.5F);
  weights.decay = read_decay(source, prefix, s);
  weights.dt_bias = source.vector({{name("linear_attn.dt_bias"), s.value_heads}}, 1.0F);
  weights.out_norm = source.vector({{name("linear_attn.norm.weight"), s.value_dim}}, 1.0F);
  weights.out.weight =
      source.matrix({{name("linear_attn.out_proj.weight"), s.dim}}, s.out_columns());
  return weights;
}

DeltaNetMixer::DeltaNetMixer(const DeltaNetShape& shape, DeltaNetWeights weights,
                             std::int64_t layer, Backend& backend, const LayerScratch& scratch)
    : shape_(shape),
      weights_(std::move(weights)),
      layer_(layer),
      backend_(backend),
      scratch_(scratch) {}

Rows DeltaNetMixer::out_rows(std::int64_t rows) const {
  return weights_.out.input(scratch_.mixer_out.first_rows(rows));
}

/// [tokens, in_columns()]
Tensor DeltaNetMixer::inputs_of(Tensor hidden) {
  Product in = weights_.in.product(weights_.in.input(scratch_.normed.first_rows(hidden.rows)));
  weights_.norm.before(in, hidden);
  const Tensor all = scratch_.mixer_in.first_rows(hidden.rows);
  const Tensor inputs = all.columns(latent_columns(shape_), shape_.in_columns());
  in.out = all.columns(0, weights_.in.weight->rows());
  backend_.product(in);
  if (!shape_.by_channel) return inputs;

  Product decays = weights_.decays.product(all.columns(0, shape_.key_dim));
  decays.out = inputs.columns(shape_.decays_at(), shape_.decay_columns());
  backend_.product(decays);
  Product gates = weights_.gates.product(all.columns(shape_.key_dim, shape_.key_dim));
  gates.out = inputs.columns(shape_.gates_at(), shape_.out_columns());
  backend_.product(gates);
  return inputs;
}

void DeltaNetMixer::keep(Tensor hidden, const PassInputs& pass) {
  DeltaNet net{shape_};
  net.norm_eps = shape_.norm_eps;
  net.in = inputs_of(hidden);
  net.conv = weights_.conv->data();
  net.decay = weights_.decay->data();
  net.dt_bias = weights_.dt_bias->data();
  net.norm = weights_.out_norm->data();
  net.out = out_rows(hidden.rows);
  net.states = pass.states;
  net.layer = layer_;
  net.plan = pass.recurrence;
  backend_.delta_net(net);
}

void DeltaNetMixer::add(Tensor hidden, const PassInputs& pass) {
  keep(hidden, pass);
  Product out = weights_.out.product(out_rows(hidden.rows));
  out.epilogue = Epilogue::kAdd;
  out.out = hidden;
  backend_.product(out);
}

}  // namespace dendrite
