#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "model/parts/attention_place.h"
#include "model/parts/attention_shape.h"
#include "model/parts/layer.h"
#include "model/parts/linear.h"
#include "model/parts/scratch.h"
#include "model/parts/weight_source.h"

namespace dendrite {

/// q, k and v are one matrix: one read of the activations.
struct AttentionWeights {
  Norm norm;
  Linear qkv;                      // [(heads + 2 * kv_heads) * head_dim, dim]
  std::unique_ptr<Buffer> q_norm;  // [head_dim], maybe ones, or of all heads, or null
  std::unique_ptr<Buffer> k_norm;
  std::unique_ptr<Buffer> v_norm;  // [head_dim] ones, or null
  std::unique_ptr<Buffer> sinks;   // [heads] or null
  Linear out;                      // [dim, heads * head_dim]
  Join join;

  /// By Hugging Face's names behind `prefix`, which ends in a dot.
  static AttentionWeights read(WeightSource& source, const std::string& prefix,
                               const AttentionShape& shape);
};

/// Grouped-query attention with RoPE over the pages of a KvStore. Sources: Vaswani et al. 2017,
/// arXiv:1706.03762; Ainslie et al. 2023, arXiv:2305.13245.
class Attention final : public Mixer {
 public:
  /// `scratch` outlives it.
  Attention(const AttentionShape& shape, AttentionWeights weights, const AttentionPlace& place,
            Backend& backend, const LayerScratch& scratch);

  void add(Tensor hidden, const PassInputs& pass) override;
  void keep(Tensor hidden, const PassInputs& pass) override;
  /// K and V that were made elsewhere, [tokens, 2 * kv_heads * head_dim]: K is normed and rotated
  /// in place, and both go to the rows' places.
  void store(Tensor kv, const PassInputs& pass) const;

 private:
  RopeStore rope_of(Tensor qkv, const PassInputs& pass) const;
  void norm_all_heads(Tensor qkv) const;

  AttentionShape shape_;
  AttentionWeights weights_;
  AttentionPlace place_;
  Backend& backend_;
  const LayerScratch& scratch_;
};

}  // namespace dendrite
