#pragma once

#include <string>

#include "model/parts/experts.h"
#include "model/parts/gated_ffn.h"

namespace dendrite {

struct ExpertsBesideWeights {
  GatedFfnWeights dense;
  ExpertsWeights experts;
  Norm behind;
};

/// A mixture of experts beside a gated MLP: hidden += norm(dense(hidden) + experts(hidden)), each
/// with norms of its own before and behind it. Gemma 4.
class ExpertsBeside final : public FeedForward {
 public:
  /// `scratch` outlives it.
  ExpertsBeside(const Routing& routing, ExpertsBesideWeights weights, Backend& backend,
                const LayerScratch& scratch);
  void add(Tensor hidden) override;

 private:
  Norm behind_;
  GatedFfn dense_;
  ExpertsFfn experts_;
  Backend& backend_;
  const LayerScratch& scratch_;
};

}  // namespace dendrite
