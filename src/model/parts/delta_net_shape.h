#pragma once

#include <cstdint>

#include "backend/delta_net_sizes.h"

namespace dendrite {

/// Columns before those of what goes in: where channels decay by themselves, what decays and gates
/// are made of, as many of each as a head of k has.
inline std::int64_t latent_columns(const DeltaNetSizes& sizes) {
  return sizes.by_channel ? 2 * sizes.key_dim : 0;
}

struct DeltaNetShape : DeltaNetSizes {
  std::int64_t dim = 0;
  float norm_eps = 0;
  bool zero_centred = false;  // weights of the norm in front are 1 + what is stored
  /// Rows of what goes in lie by key head, in two tensors, in_proj_qkvz and in_proj_ba.
  bool by_key_head = false;
};

}  // namespace dendrite
