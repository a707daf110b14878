#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>
#include <string>
#include <utility>

#include "backend/cuda/base/check.h"
#include "backend/cuda/base/device_scope.h"
#include "backend/host_memory.h"

namespace dendrite::cuda {

/// A GPU, one stream that everything is enqueued on, and cuBLASLt.
class Device {
 public:
  /// Throws Error when there is no GPU of that index or no driver that fits this build.
  explicit Device(int index);
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  /// The index, if there is such a GPU. Throws as the constructor does.
  static int checked(int index);

  /// See DeviceScope. To be opened wherever a thread of the caller's enters and calls CUDA.
  DeviceScope scope() const { return DeviceScope(index_); }
  /// The same in destructors.
  DeviceScope last_scope() const noexcept { return {index_, std::nothrow}; }

  int index() const { return index_; }
  cudaStream_t stream() const { return stream_; }
  cublasLtHandle_t blas() const { return blas_; }
  const std::string& name() const { return name_; }
  int architecture() const { return architecture_; }  // 90 for compute capability 9.0
  int multiprocessors() const { return multiprocessors_; }
  int shared_bytes() const { return shared_bytes_; }  // that a block may ask for
  DeviceMemory memory() const;
  bool shares_memory() const { return shares_memory_; }  // its memory is the host's
  /// Held while what is enqueued on the stream is recorded, not run. Whoever uses the stream beside
  /// the thread that runs passes takes it.
  std::mutex& recording() { return recording_; }
  /// Throws Error when a kernel since the last time failed; which one, CUDA does not say here.
  void synchronize(const char* op) const;

 private:
  int index_;
  cudaStream_t stream_ = nullptr;
  cublasLtHandle_t blas_ = nullptr;
  std::string name_;
  int architecture_ = 0;
  int multiprocessors_ = 0;
  int shared_bytes_ = 0;
  bool shares_memory_ = false;
  std::mutex recording_;
};

/// The calling thread's.
int current_device() noexcept;

/// Bytes that `kFree` gives back; freed with the object, where they were allocated.
template <cudaError_t (*kFree)(void*)>
class Allocation {
 public:
  Allocation() = default;
  Allocation(Allocation&& other) noexcept
      : data_(std::exchange(other.data_, nullptr)),
        size_bytes_(std::exchange(other.size_bytes_, 0)),
        device_(other.device_) {}
  Allocation& operator=(Allocation&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_bytes_, other.size_bytes_);
    std::swap(device_, other.device_);
    return *this;
  }
  ~Allocation() {
    if (data_ == nullptr) return;
    const DeviceScope here(device_, std::nothrow);
    kFree(data_);
  }

  std::byte* data() const { return data_; }
  std::int64_t size_bytes() const { return size_bytes_; }

 protected:
  Allocation(void* data, std::int64_t size_bytes)
      : data_(static_cast<std::byte*>(data)), size_bytes_(size_bytes), device_(current_device()) {}

 private:
  std::byte* data_ = nullptr;
  std::int64_t size_bytes_ = 0;
  int device_ = 0;
};

/// Device memory.
class Memory : public Allocation<cudaFree> {
 public:
  Memory() = default;
  /// Throws Error naming `what`, the size and what is free when there is not enough.
  Memory(std::int64_t size_bytes, const char* what);
};

/// Page-locked memory of the host, which kernels may read and write where it is.
class HostMemory : public Allocation<cudaFreeHost> {
 public:
  HostMemory() = default;
  /// Throws Error naming `what` and the size when there is not enough.
  HostMemory(std::int64_t size_bytes, const char* what);
};

}  // namespace dendrite::cuda
