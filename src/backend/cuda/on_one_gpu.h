#pragma once

#include <cstdint>
#include <memory>

#include "backend/backend.h"
#include "backend/cuda/base/device.h"

namespace dendrite::cuda {

/// A backend on one GPU, and what of it lives as long.
struct OnOneGpu {
  std::unique_ptr<Backend> backend;
  const Device* device;
  std::int32_t* kept_draws;  // on it, see LogitsSampler
};
OnOneGpu make_on_one_gpu(Numerics numerics, const CudaOptions& options, int index);

}  // namespace dendrite::cuda
