#pragma once

#include <string>

#include "model/parts/experts.h"
#include "model/parts/gated_ffn.h"

namespace dendrite {

struct ExpertsBesideWeights {
  GatedFfnWeights dense;
  ExpertsWeights experts;
  Norm behind;       // or none
  float factor = 1;  // of what both give
};

/// A mixture of experts beside a gated MLP: hidden += factor * norm(dense(hidden) +
/// experts(hidden)), each with norms of its own before and behind it (Gemma 4), or one before both
/// (Granite 4).
class ExpertsBeside final : public FeedForward {
 public:
  /// `scratch` outlives it.
  ExpertsBeside(const Routing& routing, ExpertsBesideWeights weights, Backend& backend,
                const LayerScratch& scratch);
  void add(Tensor hidden) override;

 private:
  Norm behind_;
  float factor_;
  GatedFfn dense_;
  ExpertsFfn experts_;
  Backend& backend_;
  const LayerScratch& scratch_;
};

}  // namespace dendrite
