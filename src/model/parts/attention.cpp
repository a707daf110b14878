#include "model/parts/attention.h"

#include <cmath>
#include <utility>

namespace dendrite {

AttentionWeights AttentionWeights::read(WeightSource& source, const std::string& prefix,
                                        const AttentionShape& s) {
  const auto name = [&prefix](const char* rest) { return prefix + rest; };
  const std::int64_t kv = s.kv_heads * s.head_dim;
  // With gates a head's rows of q_proj are its queries, then as many gates.
  const auto qkv = [&](const char* kind) {
    const auto part = [&](const char* matrix) { return prefix + "self_attn." + matrix + kind; };
    std::vector<WeightSource::Part> parts{
        {part("q_proj."), s.q_columns()}, {part("k_proj."), kv}, {part("v_proj."), kv}};
    if (s.gate) {
      parts.front().turns = {s.head_dim, s.head_dim};
      parts.push_back(parts.front());
      parts.back().kind = 1;
    }
    return parts;
  };
  const Change change = change_of(s.zero_centred);
  NormNames norms{name("input_layernorm.weight")};
  norms.zero_centred = s.zero_centred;
  AttentionWeights weights;
  weights.norm = {source.vector({{norms.before, s.dim}}, 1.0F, change), s.norm_eps};
  if (s.qk_norm) {
    norms.q = name("self_attn.q_norm.weight");
    norms.k = name("self_attn.k_norm.weight");
    norms.head_dim = s.head_dim;
    norms.rotary_dim = s.rotary_dim;
  }
  weights.qkv.weight = source.matrix(qkv("weight"), s.dim, norms);
  if (s.bias) weights.qkv.bias = source.vector(qkv("bias"), 0.0F);
  if (s.qk_norm) {
    weights.q_norm = source.vector({{norms.q, s.head_dim}}, 1.0F, change);
    weights.k_norm = source.vector({{norms.k, s.head_dim}}, 1.0F, change);
  }
  weights.out.weight = source.matrix({{name("self_attn.o_proj.weight"), s.dim}}, s.q_columns());
  if (s.out_bias) {
    weights.out.bias = source.vector({{name("self_attn.o_proj.bias"), s.dim}}, 0.0F);
  }
  return weights;
}

Attention::Attention(const AttentionShape& shape, AttentionWeights weights, std::int64_t layer,
                     std::size_t plan, Backend& backend, const LayerScratch& scratch)
    : shape_(shape),
      weights_(std::move(weights)),
      layer_(layer),
      plan_(plan),
      scale_(1.0F / std::sqrt(static_cast<float>(shape.head_dim))),
      backend_(backend),
      scratch_(scratch) {}

void Attention::keep(Tensor hidden, const PassInputs& pass) {
  const Tensor all = scratch_.qkv.first_rows(hidden.rows);
  const RopeStore rope = rope_of(all.columns(0, shape_.qkv_columns()), pass);
  Product qkv = weights_.qkv.product(weights_.qkv.input(scratch_.normed.first_rows(hidden.rows)));
  weights_.norm.before(qkv, hidden);
  qkv.out = all;
  if (!shape_.gate) {
    qkv.epilogue = Epilogue::kRope;
    qkv.rope = &rope;
  }
  backend_.product(qkv);
  if (shape_.gate) backend_.rope_and_store(rope);  // which leaves the gates as they are
}

void Attention::add(Tensor hidden, const PassInputs& pass) {
  keep(hidden, pass);
  const Tensor attended = scratch_.attended.first_rows(hidden.rows);
  const Rows out =
      weights_.out.input(shape_.gate ? scratch_.gated.first_rows(hidden.rows) : attended);
  AttentionArgs attention;
  attention.out = shape_.gate ? Rows(attended) : out;
  attention.q = scratch_.qkv.first_rows(hidden.rows).columns(0, shape_.q_columns());
  attention.heads = shape_.heads;
  attention.scale = scale_;
  attention.kv = pass.kv;
  attention.layer = layer_;
  attention.plan = &pass.plans[plan_];
  backend_.attention(attention);
  if (shape_.gate) {
    const Tensor gates =
        scratch_.qkv.first_rows(hidden.rows).columns(shape_.qkv_columns(), shape_.q_columns());
    backend_.gate(out, attended, gates);
  }

  Product product = weights_.out.product(out);
  product.epilogue = Epilogue::kAdd;
  product.out = hidden;
  backend_.product(product);
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
  rope.cos_sin = pass.cos_sin_device;
  rope.q_norm = data_or_null(weights_.q_norm);
  rope.k_norm = data_or_null(weights_.k_norm);
  rope.norm_eps = shape_.norm_eps;
  rope.slots = pass.slots;
  rope.extra_stores = pass.extra_stores;
  rope.kv = pass.kv;
  rope.layer = layer_;
  return rope;
}

}  // namespace dendrite
