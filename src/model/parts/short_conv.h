#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "model/parts/layer.h"
#include "model/parts/linear.h"
#include "model/parts/scratch.h"
#include "model/parts/short_conv_shape.h"
#include "model/parts/weight_source.h"

namespace dendrite {

struct ShortConvWeights {
  Norm norm;
  Linear in;                          // [ShortConvSizes::in_columns(), channels]
  std::unique_ptr<Buffer> conv;       // [channels, taps]
  std::unique_ptr<Buffer> conv_bias;  // [channels] or null
  Linear out;                         // [channels, channels]
  Join join;

  /// By Hugging Face's names behind `prefix`, which ends in a dot.
  static ShortConvWeights read(WeightSource& source, const std::string& prefix,
                               const ShortConvShape& shape);
};

/// A gated short convolution: a row knows of the few before it alone. Source: Liquid AI 2025,
/// arXiv:2511.23404.
class ShortConvMixer final : public Mixer {
 public:
  /// layer: of the store of states. `scratch` outlives it.
  ShortConvMixer(const ShortConvShape& shape, ShortConvWeights weights, std::int64_t layer,
                 Backend& backend, const LayerScratch& scratch);

  void add(Tensor hidden, const PassInputs& pass) override;
  void keep(Tensor hidden, const PassInputs& pass) override;

 private:
  Rows out_rows(std::int64_t rows) const;

  ShortConvShape shape_;
  ShortConvWeights weights_;
  std::int64_t layer_;
  Backend& backend_;
  const LayerScratch& scratch_;
};

}  // namespace dendrite
