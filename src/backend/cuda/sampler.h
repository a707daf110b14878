#pragma once

#include "backend/cuda/device.h"
#include "backend/cuda/timeline.h"
#include "backend/logits_sampler.h"

namespace dendrite::cuda {

/// What a chunk of a row's logits holds. Chunks are cut at fixed tokens.
struct ChunkStats {
  float max;        // -inf: nothing but -inf and NaN
  std::int32_t at;  // its token, the lowest
  double raw;       // sum exp(x - max)
  double scaled;    // sum exp((x - max) / temperature)
};

/// See LogitsSampler. Floor: the logits once from L2 (a row of 128256: 0.5 MB), and the latency of
/// two launches.
class CudaSampler final : public LogitsSampler {
 public:
  CudaSampler(Device& device, Timeline& timeline) : device_(device), timeline_(timeline) {}
  CudaSampler(const CudaSampler&) = delete;
  CudaSampler& operator=(const CudaSampler&) = delete;

  void draw(Tensor logits, std::span<Draw> draws) override;
  void log_probs(Tensor logits, std::span<const TokenQuery> queries, std::span<float> out) override;

 private:
  void reserve(std::int64_t stats, std::int64_t host_bytes);

  Device& device_;
  Timeline& timeline_;
  Memory stats_;     // [rows or draws][chunks] of ChunkStats
  HostMemory host_;  // kernels read queries and write results there
};

}  // namespace dendrite::cuda
