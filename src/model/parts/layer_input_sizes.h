#pragma once

#include <cstdint>

namespace dendrite {

/// What a layer is given of each row's token by itself.
struct LayerInputSizes {
  std::int64_t dim = 0;    // a layer
  std::int64_t vocab = 0;  // rows of the table, at least the model's
};

}  // namespace dendrite
