#pragma once

#include <new>

#include "backend/cuda/base/check.h"

namespace dendrite::cuda {

/// While it lives, a GPU is the calling thread's current one, which allocations, events and kernels
/// belong to. CUDA keeps that per thread, and threads come from the caller, who may use another GPU
/// there: all that the backend offers and that calls CUDA opens one of these first. Where the GPU
/// is current already it costs one look-up.
///
/// Afterwards the GPU that was current is so again, unless the process never used it: CUDA would
/// then take memory on it.
class DeviceScope {
 public:
  /// Throws Error where there is no GPU of that index.
  explicit DeviceScope(int index) {
    const cudaError_t status = enter(index);
    if (status != cudaSuccess) check(status, "device cuda:" + std::to_string(index));
  }
  /// For destructors, where CUDA may be gone already.
  DeviceScope(int index, std::nothrow_t) noexcept { (void)enter(index); }
  ~DeviceScope();
  DeviceScope(const DeviceScope&) = delete;
  DeviceScope& operator=(const DeviceScope&) = delete;

 private:
  cudaError_t enter(int index) noexcept;

  int before_ = -1;  // to be current again; -1: nothing to do
};

}  // namespace dendrite::cuda
