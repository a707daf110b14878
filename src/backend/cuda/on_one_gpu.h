#pragma once

#include <memory>

#include "backend/backend.h"
#include "backend/cuda/base/device.h"

namespace dendrite::cuda {

/// A backend on one GPU, and that GPU, which lives as long.
struct OnOneGpu {
  std::unique_ptr<Backend> backend;
  const Device* device;
};
OnOneGpu make_on_one_gpu(Numerics numerics, const CudaOptions& options, int index);

}  // namespace dendrite::cuda
