#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "model/parts/delta_net_shape.h"
#include "model/parts/layer.h"
#include "model/parts/linear.h"
#include "model/parts/scratch.h"
#include "model/parts/weight_source.h"

namespace dendrite {

/// All that a layer takes of its input is one matrix: what is convolved, gates, how much is written
/// and how much decays. Where channels decay by themselves it gives latents in place of decays and
/// gates, of which two more matrices make these.
struct DeltaNetWeights {
  Norm norm;
  Linear in;      // [DeltaNetSizes::in_columns(), dim], or what stands before decays and gates
  Linear decays;  // [decay_columns(), key_dim], or none
  Linear gates;   // [out_columns(), key_dim], or none
  std::unique_ptr<Buffer> conv;      // [channels, taps]
  std::unique_ptr<Buffer> decay;     // [value_heads]: exp(A_log)
  std::unique_ptr<Buffer> dt_bias;   // [decay_columns()]
  std::unique_ptr<Buffer> out_norm;  // [value_dim], of each head
  Linear out;                        // [dim, DeltaNetSizes::out_columns()]

  /// By Hugging Face's names behind `prefix`, which ends in a dot.
  static DeltaNetWeights read(WeightSource& source, const std::string& prefix,
                              const DeltaNetShape& shape);
};

/// A gated delta network, or Kimi Delta Attention: a state of fixed size for all that was before.
/// Sources: Yang et al. 2024, arXiv:2412.06464; Kimi Team 2025, arXiv:2510.26692.
class DeltaNetMixer final : public Mixer {
 public:
  /// layer: of the store of states. `scratch` outlives it.
  DeltaNetMixer(const DeltaNetShape& shape, DeltaNetWeights weights, std::int64_t layer,
                Backend& backend, const LayerScratch& scratch);

  void add(Tensor hidden, const PassInputs& pass) override;
  void keep(Tensor hidden, const PassInputs& pass) override;

 private:
  Rows out_rows(std::int64_t rows) const;
  Tensor inputs_of(Tensor hidden);

  DeltaNetShape shape_;
  DeltaNetWeights weights_;
  std::int64_t layer_;
  Backend& backend_;
  const LayerScratch& scratch_;
};

}  // namespace dendrite
