#include "backend/cuda/base/device.h"

#include <algorithm>

#include "dendrite/error.h"

namespace dendrite::cuda {

namespace {

/// Of the current device.
DeviceMemory device_memory() {
  std::size_t free = 0;
  std::size_t total = 0;
  cudaMemGetInfo(&free, &total);
  return {static_cast<std::int64_t>(total), static_cast<std::int64_t>(free)};
}

}  // namespace

void Device::synchronize(const char* op) const {
  const cudaError_t status = cudaStreamSynchronize(stream_);
  if (status == cudaSuccess) return;
  check(status, std::string(op) +
                    ", or an op before it (CUDA_LAUNCH_BLOCKING=1 in the environment tells which)");
}

int Device::checked(int index) {
  int count = 0;
  const cudaError_t found = cudaGetDeviceCount(&count);
  if (found != cudaSuccess || count == 0) {
    throw Error(std::string("device cuda: ") +
                (found == cudaSuccess ? "no GPU found" : cudaGetErrorString(found)) +
                "; expected an NVIDIA GPU and a driver for CUDA " +
                std::to_string(CUDART_VERSION / 1000) + ", or device cpu");
  }
  if (index < 0 || index >= count) {
    throw Error("device cuda:" + std::to_string(index) + ": there " +
                (count == 1 ? "is 1 GPU; expected cuda:0"
                            : "are " + std::to_string(count) +
                                  " GPUs; expected cuda:0 to cuda:" + std::to_string(count - 1)));
  }
  return index;
}

Device::Device(int index) : index_(checked(index)) {
  const DeviceScope here = scope();
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, index), "device cuda");
  name_ = properties.name;
  architecture_ = properties.major * 10 + properties.minor;
  multiprocessors_ = properties.multiProcessorCount;
  shared_bytes_ = static_cast<int>(properties.sharedMemPerBlockOptin);
  shares_memory_ = properties.integrated != 0;
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "device cuda");
  check(cublasLtCreate(&blas_), "device cuda");
}

Device::~Device() {
  const DeviceScope here = last_scope();
  if (stream_ != nullptr) cudaStreamSynchronize(stream_);
  if (blas_ != nullptr) cublasLtDestroy(blas_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

DeviceMemory Device::memory() const {
  const DeviceScope here = scope();
  DeviceMemory memory = device_memory();
  // CUDA calls only that free which nobody uses; the host would also give up its caches.
  if (shares_memory_) memory.free = std::max(memory.free, host_memory().free);
  return memory;
}

namespace {

void* allocate(std::int64_t size_bytes, const char* what) {
  if (size_bytes == 0) return nullptr;
  void* data = nullptr;
  const cudaError_t status = cudaMalloc(&data, static_cast<std::size_t>(size_bytes));
  if (status == cudaSuccess) return data;
  cudaGetLastError();  // an allocation that failed leaves nothing else wrong
  throw_out_of_memory(what, size_bytes, "device memory", device_memory(),
                      cudaGetErrorString(status));
}

void* allocate_on_host(std::int64_t size_bytes, const char* what) {
  if (size_bytes == 0) return nullptr;
  void* data = nullptr;
  const cudaError_t status = cudaMallocHost(&data, static_cast<std::size_t>(size_bytes));
  if (status == cudaSuccess) return data;
  cudaGetLastError();  // as above
  throw_out_of_memory(what, size_bytes, "page-locked host memory", host_memory(),
                      cudaGetErrorString(status));
}

}  // namespace

int current_device() noexcept {
  int index = 0;
  (void)cudaGetDevice(&index);
  return index;
}

Memory::Memory(std::int64_t size_bytes, const char* what)
    : Allocation(allocate(size_bytes, what), size_bytes) {}

HostMemory::HostMemory(std::int64_t size_bytes, const char* what)
    : Allocation(allocate_on_host(size_bytes, what), size_bytes) {}

}  // namespace dendrite::cuda
