#pragma once

#include <cstdint>
#include <limits>
#include <string>

#include "backend/mamba_sizes.h"
#include "model/parts/layer_norms.h"

namespace dendrite {

/// What families differ in of Mamba-2.
struct MambaKind : MambaSizes {
  bool bias = false;       // of both projections
  bool conv_bias = false;  // of the convolution
  float least_dt = 0;      // Mamba::least_dt
  float most_dt = std::numeric_limits<float>::infinity();
  std::string block = "mamba.";  // how its tensors' names begin behind a layer's prefix
};

struct MambaShape : MambaKind {
  std::int64_t dim = 0;  // of the residual stream
  float norm_eps = 0;
  float residual = 1;  // what is given to the stream is times this
  LayerNorms norms{};
};

}  // namespace dendrite
