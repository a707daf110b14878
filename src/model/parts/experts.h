#pragma once

#include <string>
#include <vector>

#include "model/parts/experts_shape.h"
#include "model/parts/layer.h"
#include "model/parts/linear.h"
#include "model/parts/scratch.h"
#include "model/parts/weight_source.h"

namespace dendrite {

struct ExpertsWeights {
  struct OfExpert {
    std::unique_ptr<Weight> gate_up;  // [2 * ffn, dim], or [ffn, dim] without gates
    std::unique_ptr<Weight> down;     // [dim, ffn]
  };
  Norm norm;
  Norm router_norm;                    // where the router has one of its own
  Linear router;                       // [Routing::logits(), dim]
  float router_scale = 1;              // of its logits
  std::unique_ptr<Buffer> correction;  // [Routing::experts] or null
  std::unique_ptr<Buffer> factors;     // the same
  Activation activation{};
  bool squared_relu = false;
  std::vector<OfExpert> experts;         // [Routing::all_experts()]
  std::unique_ptr<Buffer> gate_up_bias;  // [Routing::experts, 2 * ffn] or null
  std::unique_ptr<Buffer> down_bias;     // [Routing::experts, dim] or null
  Norm behind;                           // of the sum of the experts, where there is one

  /// By Hugging Face's names behind `prefix`, which ends in a dot: each expert's by itself, or all
  /// experts' in one tensor. An expert is packed where it lies in the file.
  static ExpertsWeights read(WeightSource& source, const std::string& prefix,
                             const ExpertsShape& shape);
};

/// A mixture of experts: see Backend::experts.
class ExpertsFfn final : public FeedForward {
 public:
  /// `scratch` outlives it.
  ExpertsFfn(const Routing& routing, ExpertsWeights weights, Backend& backend,
             const LayerScratch& scratch);
  void add(Tensor hidden) override { add_to(hidden, hidden); }
  /// The same to another stream [tokens, dim].
  void add_to(Tensor out, Tensor hidden);

 private:
  Rows routed(Tensor hidden);
  Routing routing_;
  ExpertsWeights weights_;
  std::vector<Expert> experts_;
  Backend& backend_;
  const LayerScratch& scratch_;
};

}  // namespace dendrite
