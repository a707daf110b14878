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

void check(cudaError_t status, const std::string& op) {
  if (status == cudaSuccess) return;
  throw Error(op + ": " + cudaGetErrorString(status) + " (" + cudaGetErrorName(status) + ")");
}

void check(cublasStatus_t status, const std::string& op) {
  if (status == CUBLAS_STATUS_SUCCESS) return;
  throw Error(op + ": " + cublasLtGetStatusString(status) + " (" + cublasLtGetStatusName(status) +
              ")");
}

void check_launch(const char* op, std::initializer_list<Extent> shape) {
  const cudaError_t status = cudaGetLastError();
  if (status == cudaSuccess) return;
  std::string text = op;
  const char* before = " (";
  for (const Extent& extent : shape) {
    text += before + std::string(extent.name) + " " + std::to_string(extent.value);
    before = ", ";
  }
  check(status, text + ")");
}

void Device::synchronize(const char* op) const {
  const cudaError_t status = cudaStreamSynchronize(stream_);
  if (status == cudaSuccess) return;
  check(status, std::string(op) +
                    ", or an op before it (CUDA_LAUNCH_BLOCKING=1 in the environment tells which)");
}

Device::Device() {
  int count = 0;
  const cudaError_t found = cudaGetDeviceCount(&count);
  if (found != cudaSuccess || count == 0) {
    throw Error(std::string("device cuda: ") +
                (found == cudaSuccess ? "no GPU found" : cudaGetErrorString(found)) +
                "; expected an NVIDIA GPU and a driver for CUDA " +
                std::to_string(CUDART_VERSION / 1000) + ", or device cpu");
  }
  check(cudaSetDevice(0), "device cuda");
  cudaDeviceProp properties{};
  check(cudaGetDeviceProperties(&properties, 0), "device cuda");
  name_ = properties.name;
  architecture_ = properties.major * 10 + properties.minor;
  multiprocessors_ = properties.multiProcessorCount;
  shared_bytes_ = static_cast<int>(properties.sharedMemPerBlockOptin);
  shares_memory_ = properties.integrated != 0;
  check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "device cuda");
  check(cublasLtCreate(&blas_), "device cuda");
}

Device::~Device() {
  if (stream_ != nullptr) cudaStreamSynchronize(stream_);
  if (blas_ != nullptr) cublasLtDestroy(blas_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

DeviceMemory Device::memory() const {
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

Memory::Memory(std::int64_t size_bytes, const char* what)
    : Allocation(allocate(size_bytes, what), size_bytes) {}

HostMemory::HostMemory(std::int64_t size_bytes, const char* what)
    : Allocation(allocate_on_host(size_bytes, what), size_bytes) {}

}  // namespace dendrite::cuda
