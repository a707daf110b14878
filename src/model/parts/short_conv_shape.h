#pragma once

#include <cstdint>

#include "backend/short_conv_sizes.h"
#include "model/parts/layer_norms.h"

namespace dendrite {

/// Channels are those of the residual stream.
struct ShortConvShape : ShortConvSizes {
  bool bias = false;  // of both projections and of the convolution
  float norm_eps = 0;
  LayerNorms norms{};
};

}  // namespace dendrite
