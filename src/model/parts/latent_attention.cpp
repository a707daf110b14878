#include "model/parts/latent_attention.h"

#include <utility>

#include "model/parts/norm.h"

namespace dendrite {
namespace {

using Part = WeightSource::Part;

/// Of the norms of latents, whatever that of others is.
constexpr float kLatentEps = 1e-6F;

/// Rows of heads whose last ones RoPE turns, of which neighbours may be pairs.
Part of_heads(const std::string& name, std::int64_t rows, std::int64_t head, const LatentShape& s) {
  Part part{name, rows};
  if (!s.pairs) return part;
  part.head = head;
  part.unrotated = head - s.rotary_dim;
  part.rotated = s.rotary_dim;
  return part;
}

std::vector<Part> parts_in(const std::string& prefix, const char* kind, const LatentShape& s) {
  const Part queries =
      s.query_rank > 0 ? Part{prefix + "q_a_proj." + kind, s.query_rank}
                       : of_heads(prefix + "q_proj." + kind, s.query_columns(), s.query_dim(), s);
  return {queries, of_heads(prefix + "kv_a_proj_with_mqa." + kind, s.kept_dim(), s.kept_dim(), s)};
}

}  // namespace

LatentWeights LatentWeights::read(WeightSource& source, const std::string& prefix,
                                  const LatentShape& s) {
  const std::string own = prefix + "self_attn.";
  LatentWeights weights;
  weights.norm = read_norm(source, prefix, s.norms.before_mixer, s.dim, s.norm_eps, false);
  weights.in.weight =
      source.matrix(parts_in(own, "weight", s), s.dim, {prefix + s.norms.before_mixer + ".weight"});
  if (s.bias) weights.in.bias = source.vector(parts_in(own, "bias", s), 0.0F);
  if (s.query_rank > 0) {
    weights.query_norm = read_norm(source, own, "q_a_layernorm", s.query_rank, kLatentEps, false);
    weights.queries.weight = source.matrix(
        {of_heads(own + "q_b_proj.weight", s.heads * s.query_dim(), s.query_dim(), s)},
        s.query_rank, {own + "q_a_layernorm.weight"});
  }
  weights.latent_norm = read_norm(source, own, "kv_a_layernorm", s.rank, kLatentEps, false);
  // Of each head, what makes keys and then what makes values of the latent.
  for (std::int64_t head = 0; head < s.heads; ++head) {
    const std::int64_t of_head = s.plain_dim + s.value_dim;
    Part keys{own + "kv_b_proj.weight", s.rank};
    keys.transposed = true;
    keys.range = WeightSource::Range{s.heads * of_head, head * of_head};
    Part values{keys.name, s.value_dim};
    values.range = WeightSource::Range{s.heads * of_head, head * of_head + s.plain_dim};
    weights.absorb.push_back(source.matrix({keys}, s.plain_dim));
    weights.values.push_back(source.matrix({values}, s.rank));
  }
  weights.out.weight = source.matrix({{own + "o_proj.weight", s.dim}}, s.heads * s.value_dim);
  if (s.bias) weights.out.bias = source.vector({{own + "o_proj.bias", s.dim}}, 0.0F);
  return weights;
}

LatentAttention::LatentAttention(const LatentShape& shape, LatentWeights weights,
                                 const AttentionPlace& place, Backend& backend,
                                 const LayerScratch& scratch)
    : shape_(shape),
      weights_(std::move(weights)),
      place_(place),
      backend_(backend),
      scratch_(scratch) {}

/// [tokens, heads * query_dim()]: a head's plain part, then what is to be rotated.
Tensor LatentAttention::queries_of(Tensor in) const {
  const Tensor first = in.columns(0, shape_.query_columns());
  if (shape_.query_rank == 0) return first;
  Product queries =
      weights_.queries.product(weights_.queries.input(scratch_.query_latent.first_rows(in.rows)));
  weights_.query_norm.before(queries, first);
  queries.out = scratch_.queries.first_rows(in.rows);
  backend_.product(queries);
  return queries.out;
}

void LatentAttention::keep(Tensor hidden, const PassInputs& pass) {
  const std::int64_t rows = hidden.rows;
  Product product = weights_.in.product(weights_.in.input(scratch_.normed.first_rows(rows)));
  weights_.norm.before(product, hidden);
  product.out = scratch_.latent_in.first_rows(rows);
  backend_.product(product);

  const Tensor in = product.out;
  const Tensor latent = in.columns(shape_.query_columns(), shape_.rank);
  backend_.rms_norm(latent, latent, weights_.latent_norm.weight->data(), weights_.latent_norm.eps);
  const Tensor queries = queries_of(in);
  const Tensor qk = scratch_.qkv.first_rows(rows);
  const std::int64_t kept = shape_.kept_dim();
  const Tensor latents = qk.columns_from(shape_.rotary_dim);
  backend_.head_products({latents, kept, queries, shape_.query_dim(), weights_.absorb});
  backend_.copy_heads({qk, kept, queries.columns_from(shape_.plain_dim), shape_.query_dim(),
                       shape_.heads, shape_.rotary_dim});
  // K of one head: what is rotated, and the latent, which alone is of use where it is read as V.
  const std::int64_t key = shape_.heads * kept;
  backend_.copy_heads({qk.columns_from(key), kept,
                       in.columns_from(shape_.query_columns() + shape_.rank), 0, 1,
                       shape_.rotary_dim});
  backend_.copy_heads({latents.columns_from(key), kept, latent, 0, 1, shape_.rank});
  RopeStore rope;
  rope.qkv = qk;
  rope.heads = shape_.heads;
  rope.kv_heads = 1;
  rope.head_dim = shape_.kept_dim();
  rope.rotary_dim = shape_.rotary_dim;
  rope.cos_sin = pass.tables[place_.angles].device;
  rope.slots = pass.slots;
  rope.extra_stores = pass.extra_stores;
  rope.kv = pass.kv;
  rope.layer = place_.layer;
  backend_.rope_and_store(rope);
}

void LatentAttention::add(Tensor hidden, const PassInputs& pass) {
  keep(hidden, pass);
  const std::int64_t rows = hidden.rows;
  const Tensor q = scratch_.qkv.first_rows(rows).columns(0, shape_.heads * shape_.kept_dim());
  if (place_.query_factors) backend_.scale_rows(q, pass.tables[*place_.query_factors].device);
  const Tensor attended = scratch_.attended.first_rows(rows);
  AttentionArgs attention;
  attention.out = attended;
  attention.q = q;
  attention.heads = shape_.heads;
  attention.scale = shape_.scale;
  attention.kv = pass.kv;
  attention.layer = place_.layer;
  attention.plan = &pass.plans[place_.plan];
  backend_.attention(attention);

  const Tensor values = scratch_.head_values.first_rows(rows);
  backend_.head_products({values, shape_.value_dim, attended.columns_from(shape_.rotary_dim),
                          shape_.kept_dim(), weights_.values});
  Product out = weights_.out.product(values);
  out.epilogue = Epilogue::kAdd;
  out.out = hidden;
  backend_.product(out);
}

}  // namespace dendrite
