#pragma once

#include <cstdint>

#include "backend/delta_net_sizes.h"

namespace dendrite {

struct DeltaNetShape : DeltaNetSizes {
  std::int64_t dim = 0;
  float norm_eps = 0;
  bool zero_centred = false;  // weights of the norm in front are 1 + what is stored
};

}  // namespace dendrite
