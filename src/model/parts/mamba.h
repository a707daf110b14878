#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "model/parts/layer.h"
#include "model/parts/linear.h"
#include "model/parts/mamba_shape.h"
#include "model/parts/scratch.h"
#include "model/parts/weight_source.h"

namespace dendrite {

struct MambaWeights {
  Norm norm;
  Linear in;                          // [MambaSizes::in_columns(), dim]
  std::unique_ptr<Buffer> conv;       // [channels, taps]
  std::unique_ptr<Buffer> conv_bias;  // [channels] or null
  std::unique_ptr<Buffer> decay;      // [heads]: exp(A_log)
  std::unique_ptr<Buffer> dt_bias;    // [heads]
  std::unique_ptr<Buffer> skip;       // [heads]: D
  std::unique_ptr<Buffer> out_norm;   // [MambaSizes::out_columns()]
  Linear out;                         // [dim, MambaSizes::out_columns()]
  Join join;

  /// By Hugging Face's names behind `prefix`, which ends in a dot.
  static MambaWeights read(WeightSource& source, const std::string& prefix,
                           const MambaShape& shape);
};

/// Mamba-2: a state of fixed size for all that was before. Source: Dao & Gu 2024,
/// arXiv:2405.21060.
class MambaMixer final : public Mixer {
 public:
  /// layer: of the store of states. `scratch` outlives it.
  MambaMixer(const MambaShape& shape, MambaWeights weights, std::int64_t layer, Backend& backend,
             const LayerScratch& scratch);

  void add(Tensor hidden, const PassInputs& pass) override;
  void keep(Tensor hidden, const PassInputs& pass) override;

 private:
  Rows out_rows(std::int64_t rows) const;

  MambaShape shape_;
  MambaWeights weights_;
  std::int64_t layer_;
  Backend& backend_;
  const LayerScratch& scratch_;
};

}  // namespace dendrite
