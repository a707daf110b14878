#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace dendrite::cuda {

/// Throws Error "op: what the driver says (name)" unless `status` is success.
void check(cudaError_t status, const std::string& op);
void check(cublasStatus_t status, const std::string& op);

/// The first GPU, one stream that everything is enqueued on, and cuBLASLt.
class Device {
 public:
  /// Throws Error when there is no GPU or no driver that fits this build.
  Device();
  ~Device();
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;

  cudaStream_t stream() const { return stream_; }
  cublasLtHandle_t blas() const { return blas_; }
  const std::string& name() const { return name_; }
  int architecture() const { return architecture_; }  // 90 for compute capability 9.0
  std::int64_t memory_bytes() const { return memory_bytes_; }
  void synchronize(const char* op) const { check(cudaStreamSynchronize(stream_), op); }

 private:
  cudaStream_t stream_ = nullptr;
  cublasLtHandle_t blas_ = nullptr;
  std::string name_;
  int architecture_ = 0;
  std::int64_t memory_bytes_ = 0;
};

/// Device memory; freed with the object.
class Memory {
 public:
  Memory() = default;
  /// Throws Error naming `what`, the size and what is free when there is not enough.
  Memory(std::int64_t size_bytes, const char* what);
  Memory(Memory&& other) noexcept;
  Memory& operator=(Memory&& other) noexcept;
  ~Memory();

  std::byte* data() const { return data_; }
  std::int64_t size_bytes() const { return size_bytes_; }

 private:
  std::byte* data_ = nullptr;
  std::int64_t size_bytes_ = 0;
};

}  // namespace dendrite::cuda
