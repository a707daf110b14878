#pragma once

#include <memory>
#include <string>
#include <vector>

#include "model/parts/attention_place.h"
#include "model/parts/latent_shape.h"
#include "model/parts/layer.h"
#include "model/parts/linear.h"
#include "model/parts/scratch.h"
#include "model/parts/weight_source.h"

namespace dendrite {

/// All that a layer takes of its input is one matrix.
struct LatentWeights {
  Norm norm;
  Linear in;         // [LatentShape::in_columns(), dim]
  Norm query_norm;   // [query_rank], or none
  Linear queries;    // [heads * query_dim(), query_rank], or none
  Norm latent_norm;  // [rank]
  /// Of each head, what turns the plain part of its queries into the latent's space [rank,
  /// plain_dim], and the attended latent into its values [value_dim, rank].
  std::vector<std::unique_ptr<Weight>> absorb;
  std::vector<std::unique_ptr<Weight>> values;
  Linear out;  // [dim, heads * value_dim]

  /// By Hugging Face's names behind `prefix`, which ends in a dot.
  static LatentWeights read(WeightSource& source, const std::string& prefix,
                            const LatentShape& shape);
};

/// Attention through a latent: keys and values of all heads are products of one vector a token,
/// which alone is kept, as K of one head whose V it is. Queries are multiplied with what would make
/// keys, what is attended with what would make values, so no key is ever made. Source: DeepSeek-AI
/// 2024, arXiv:2405.04434.
class LatentAttention final : public Mixer {
 public:
  /// `scratch` outlives it.
  LatentAttention(const LatentShape& shape, LatentWeights weights, const AttentionPlace& place,
                  Backend& backend, const LayerScratch& scratch);

  void add(Tensor hidden, const PassInputs& pass) override;
  void keep(Tensor hidden, const PassInputs& pass) override;

 private:
  Tensor queries_of(Tensor in) const;

  LatentShape shape_;
  LatentWeights weights_;
  AttentionPlace place_;
  Backend& backend_;
  const LayerScratch& scratch_;
};

}  // namespace dendrite
