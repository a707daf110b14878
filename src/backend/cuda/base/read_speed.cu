#include "backend/cuda/base/read_speed.h"

#include <algorithm>

namespace dendrite::cuda {
namespace {

constexpr const char* kOp = "read_gb_per_s";
constexpr std::int64_t kBytes = std::int64_t{2} << 30;
constexpr int kPasses = 5;

/// Reads `count` pieces of 16 bytes once and writes next to nothing.
__global__ void read_kernel(const uint4* data, std::int64_t count, std::uint32_t* sink) {
  const std::int64_t stride = static_cast<std::int64_t>(gridDim.x) * blockDim.x;
  std::int64_t i = static_cast<std::int64_t>(blockIdx.x) * blockDim.x + threadIdx.x;
  std::uint32_t all = 0;
  for (; i + 3 * stride < count; i += 4 * stride) {
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const uint4 x = data[i + j * stride];
      all ^= x.x ^ x.y ^ x.z ^ x.w;
    }
  }
  if (all == 0x9e3779b9u) *sink = all;  // so that nothing is optimised away
}

}  // namespace

double read_gb_per_s(const Device& device) {
  const Memory memory(kBytes, kOp);
  const Memory sink(4, kOp);
  check(cudaMemsetAsync(memory.data(), 1, static_cast<std::size_t>(kBytes), device.stream()), kOp);
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  check(cudaEventCreate(&begin), kOp);
  check(cudaEventCreate(&end), kOp);
  float best = 0;
  for (int pass = 0; pass < kPasses; ++pass) {
    check(cudaEventRecord(begin, device.stream()), kOp);
    read_kernel<<<132 * 16, 512, 0, device.stream()>>>(
        reinterpret_cast<const uint4*>(memory.data()), kBytes / 16,
        reinterpret_cast<std::uint32_t*>(sink.data()));
    check(cudaGetLastError(), kOp);
    check(cudaEventRecord(end, device.stream()), kOp);
    device.synchronize(kOp);
    float ms = 0;
    check(cudaEventElapsedTime(&ms, begin, end), kOp);
    best = std::max(best, static_cast<float>(kBytes) / (ms * 1e6f));
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  return best;
}

}  // namespace dendrite::cuda
