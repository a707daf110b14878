#include "model/parts/attention.h"

#include <cmath>
#include <span>
#include <utility>
#include <vector>

#include "model/parts/norm.h"

namespace dendrite {
namespace {

/// q, k and v, then the gates, by what their tensors' names end in.
std::vector<WeightSource::Part> parts_of(const std::string& prefix, const char* kind,
                                         const AttentionShape& s) {
  const std::int64_t kv = s.kv_heads * s.head_dim;
  const auto part = [&](const char* matrix) { return prefix + s.names.block + matrix + kind; };
  if (s.fused) return {{part("qkv_proj."), s.qkv_columns()}};
  std::vector<WeightSource::Part> parts{{part("q_proj."), s.q_columns()}};
  if (s.kv_heads > 0) {
    parts.push_back({part("k_proj."), kv});
    parts.push_back({part(s.value_is_key ? "k_proj." : "v_proj."), kv});
  }
  if (s.pairs) {
    for (WeightSource::Part& rotated : std::span(parts).first(2)) {
      rotated.head = s.head_dim;
      rotated.rotated = s.rotary_dim;
    }
  }
  if (s.gate) {  // a head's rows of q_proj are its queries, then as many gates
    parts.front().turns = {s.head_dim, s.head_dim};
    parts.push_back(parts.front());
    parts.back().kind = 1;
  }
  if (s.head_gate) parts.push_back({part("gate_proj."), s.heads});
  return parts;
}

/// Of the first product: every device has as many heads of each kind.
Split split_of(const AttentionShape& s) {
  Split split{Split::Of::kOutputs, {s.q_columns()}};
  if (s.kv_heads > 0) split.runs.insert(split.runs.end(), 2, s.kv_heads * s.head_dim);
  return split;
}

}  // namespace

AttentionWeights AttentionWeights::read(WeightSource& source, const std::string& prefix,
                                        const AttentionShape& s) {
  const Change change = change_of(s.zero_centred);
  AttentionWeights weights;
  NormNames norms;
  norms.zero_centred = s.zero_centred;
  weights.norm = read_norm(source, prefix, s.norms.before_mixer, s.dim, s.norm_eps, s.zero_centred);
  if (!s.norms.before_mixer.empty()) norms.before = prefix + s.norms.before_mixer + ".weight";
  const std::string own = prefix + s.names.block;
  const std::string q_norm = own + s.names.q_norm + ".weight";
  const std::string k_norm = own + s.names.k_norm + ".weight";
  if (s.qk_norm && !s.qk_whole) {
    norms.q = q_norm;
    norms.k = s.kv_heads > 0 ? k_norm : q_norm;
    norms.head_dim = s.head_dim;
    norms.rotary_dim = s.rotary_dim;
  }
  const Split heads = split_of(s);
  weights.qkv.weight = source.matrix(parts_of(prefix, "weight", s), s.dim, norms, false, heads);
  if (s.bias) {
    weights.qkv.bias = source.vector(parts_of(prefix, "bias", s), 0.0F, nullptr, heads);
  }
  if (s.qk_norm) {
    const std::int64_t q = s.qk_whole ? s.q_columns() : s.head_dim;
    const std::int64_t k = s.qk_whole ? s.kv_heads * s.head_dim : s.head_dim;
    weights.q_norm = source.vector({{q_norm, q}}, 1.0F, change);
    if (s.kv_heads > 0) weights.k_norm = source.vector({{k_norm, k}}, 1.0F, change);
  }
  if (s.qk_plain) {  // what RoPE turns is as long as before, so that a norm may come first
    weights.q_norm = source.ones(s.head_dim);
    weights.k_norm = source.ones(s.head_dim);
  }
  if (s.value_norm && s.kv_heads > 0) weights.v_norm = source.ones(s.head_dim);
  if (s.sinks) {
    weights.sinks =
        source.vector({{own + "sinks", s.heads}}, 0.0F, nullptr, {Split::Of::kOutputs, {s.heads}});
  }
  const std::string out = own + s.names.out;
  weights.out.weight =
      source.matrix({{out + ".weight", s.dim}}, s.q_columns(), {}, false, {Split::Of::kInputs});
  if (s.out_bias) weights.out.bias = source.vector({{out + ".bias", s.dim}}, 0.0F);
  weights.join.norm =
      read_norm(source, prefix, s.norms.behind_mixer, s.dim, s.norm_eps, s.zero_centred);
  weights.join.factor = s.residual;
  return weights;
}

Attention::Attention(const AttentionShape& shape, AttentionWeights weights,
                     const AttentionPlace& place, Backend& backend, const LayerScratch& scratch)
    : shape_(shape),
      weights_(std::move(weights)),
      place_(place),
      backend_(backend),
      scratch_(scratch) {
  if (shape_.scale == 0) shape_.scale = 1.0F / std::sqrt(static_cast<float>(shape_.head_dim));
}

/// In place.
void Attention::norm_all_heads(Tensor qkv) const {
  const Tensor q = qkv.columns(0, shape_.q_columns());
  const Tensor k = qkv.columns(shape_.q_columns(), shape_.kv_heads * shape_.head_dim);
  backend_.rms_norm(q, q, weights_.q_norm->data(), shape_.norm_eps);
  backend_.rms_norm(k, k, weights_.k_norm->data(), shape_.norm_eps);
}

void Attention::keep(Tensor hidden, const PassInputs& pass) {
  const Tensor all = packed(scratch_.qkv, hidden.rows, shape_.columns());
  const RopeStore rope = rope_of(all.columns(0, shape_.qkv_columns()), pass);
  Product qkv = weights_.qkv.product(weights_.qkv.input(scratch_.normed.first_rows(hidden.rows)));
  weights_.norm.before(qkv, hidden);
  qkv.out = all;
  // What is not a part of the product.
  const bool apart = shape_.gate_columns() > 0 || shape_.qk_whole || shape_.value_norm;
  if (!apart) {
    qkv.epilogue = Epilogue::kRope;
    qkv.rope = &rope;
  }
  backend_.product(qkv);
  if (shape_.qk_whole) norm_all_heads(all);
  if (apart) backend_.rope_and_store(rope);  // which leaves the gates as they are
}

void Attention::add(Tensor hidden, const PassInputs& pass) {
  keep(hidden, pass);
  const Tensor all = packed(scratch_.qkv, hidden.rows, shape_.columns());
  const Tensor q = all.columns(0, shape_.q_columns());
  if (place_.query_factors) backend_.scale_rows(q, pass.tables[*place_.query_factors].device);

  const Tensor attended = packed(scratch_.attended, hidden.rows, shape_.q_columns());
  const bool gated = shape_.gate_columns() > 0;
  const Rows out = weights_.out.input(
      gated ? packed(scratch_.gated, hidden.rows, shape_.q_columns()) : attended);
  AttentionArgs attention;
  attention.out = gated ? Rows(attended) : out;
  attention.q = q;
  attention.heads = shape_.heads;
  attention.scale = shape_.scale;
  attention.soft_cap = shape_.soft_cap;
  attention.sinks = data_or_null(weights_.sinks);
  attention.kv = &pass.kv->part(place_.part);
  attention.layer = place_.layer;
  attention.plan = &pass.plans[place_.plan];
  backend_.attention(attention);
  if (gated) {
    const Tensor gates = all.columns(shape_.qkv_columns(), shape_.gate_columns());
    backend_.gate(out, attended, gates);
  }

  Product product = weights_.out.product(out);
  weights_.join.add(product, hidden, scratch_.normed.first_rows(hidden.rows), backend_);
}

void Attention::store(Tensor kv, const PassInputs& pass) const {
  RopeStore rope = rope_of(kv, pass);
  rope.heads = 0;  // no queries
  backend_.rope_and_store(rope);
}

RopeStore Attention::rope_of(Tensor qkv, const PassInputs& pass) const {
  RopeStore rope;
  rope.qkv = qkv;
  rope.heads = shape_.heads;
  rope.kv_heads = shape_.kv_heads;
  rope.head_dim = shape_.head_dim;
  rope.rotary_dim = shape_.rotary_dim;
  rope.cos_sin = pass.tables[place_.angles].device;
  if (!shape_.qk_whole) {
    rope.q_norm = data_or_null(weights_.q_norm);
    rope.k_norm = data_or_null(weights_.k_norm);
  }
  rope.v_norm = data_or_null(weights_.v_norm);
  rope.norm_eps = shape_.norm_eps;
  rope.slots = pass.slots;
  rope.extra_stores = pass.extra_stores;
  rope.kv = &pass.kv->part(place_.part);
  rope.layer = place_.layer;
  return rope;
}

}  // namespace dendrite
