#include "backend/cuda/base/device_scope.h"

#include <cuda.h>

namespace dendrite::cuda {
namespace {

using GetState = decltype(&cuDevicePrimaryCtxGetState);

/// Whether the process uses this GPU. The driver is asked, since the runtime has no such question.
bool is_in_use(int index) noexcept {
  static const GetState get_state = [] {
    void* entry = nullptr;
    cudaDriverEntryPointQueryResult found{};
    cudaGetDriverEntryPointByVersion("cuDevicePrimaryCtxGetState", &entry, 12000, cudaEnableDefault,
                                     &found);
    return found == cudaDriverEntryPointSuccess ? reinterpret_cast<GetState>(entry) : nullptr;
  }();
  unsigned flags = 0;
  int active = 0;
  return get_state != nullptr && get_state(index, &flags, &active) == CUDA_SUCCESS && active != 0;
}

}  // namespace

cudaError_t DeviceScope::enter(int index) noexcept {
  int current = -1;
  cudaError_t status = cudaGetDevice(&current);
  if (status != cudaSuccess || current == index) return status;
  status = cudaSetDevice(index);
  if (status == cudaSuccess && is_in_use(current)) before_ = current;
  return status;
}

DeviceScope::~DeviceScope() {
  if (before_ >= 0) cudaSetDevice(before_);
}

}  // namespace dendrite::cuda
