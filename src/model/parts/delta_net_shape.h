#pragma once

#include <cstdint>

#include "backend/ops.h"

namespace dendrite {

struct DeltaNetShape {
  std::int64_t dim = 0;
  std::int64_t key_heads = 0;
  std::int64_t value_heads = 0;  // a multiple of key_heads
  std::int64_t key_dim = 0;      // of a head
  std::int64_t value_dim = 0;
  std::int64_t taps = 0;  // of the convolution
  float norm_eps = 0;
  bool zero_centred = false;  // weights of the norm in front are 1 + what is stored

  /// Of Backend::delta_net, but for weights and rows.
  DeltaNet op() const {
    DeltaNet op;
    op.key_heads = key_heads;
    op.value_heads = value_heads;
    op.key_dim = key_dim;
    op.value_dim = value_dim;
    op.taps = taps;
    op.norm_eps = norm_eps;
    return op;
  }
  std::int64_t out_columns() const { return value_heads * value_dim; }
  std::int64_t in_columns() const { return op().channels() + out_columns() + 2 * value_heads; }
};

}  // namespace dendrite
