#pragma once

#include <cuda_runtime.h>

// Programmatic dependent launch: a kernel may begin while the one before it in the stream still
// runs, and reads or writes what earlier kernels touch only after wait_for_earlier(). Every kernel
// launched by launch_early() calls both functions, so completion stays transitive. Before compute
// capability 9.0 kernels run one after the other as usual.
namespace dendrite::cuda {

/// Waits until all earlier kernels of the stream are done and their writes are visible.
__device__ inline void wait_for_earlier() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Lets the next kernel of the stream begin as soon as every block got here.
__device__ inline void let_next_begin() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

/// Asked for each launch, as devices differ: two look-ups beside those of the launch itself.
inline bool device_launches_early() {
  int device = 0;
  int major = 0;
  return cudaGetDevice(&device) == cudaSuccess &&
         cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device) == cudaSuccess &&
         major >= 9;
}

template <typename... Parameters, typename... Arguments>
void launch_early(void (*kernel)(Parameters...), dim3 grid, unsigned threads,
                  std::size_t shared_bytes, cudaStream_t stream, Arguments... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = dim3(threads);
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = device_launches_early() ? 1 : 0;
  cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

}  // namespace dendrite::cuda
