#pragma once

#include <cuda_runtime.h>

#include <cstddef>

#include "backend/most_ranks.h"
#include "backend/tensor.h"

namespace dendrite::cuda {

/// Where ranks have their parts of a sum, for a kernel.
struct PeerParts {
  const float* data[kMostRanks] = {};  // [rows, cols], packed
  std::size_t count = 0;
};

/// out (=, or += where `add`) (parts[0] + parts[1] + ...) + bias. bias: [cols] or null
void launch_peer_sum(Tensor out, const PeerParts& parts, const float* bias, bool add,
                     cudaStream_t stream);

}  // namespace dendrite::cuda
