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
  CudaSampler(Device& device, Timeline& timeline);
  ~CudaSampler() override;
  CudaSampler(const CudaSampler&) = delete;
  CudaSampler& operator=(const CudaSampler&) = delete;

  void begin_draw(Tensor logits, std::span<const Draw> draws) override;
  void finish_draw(std::span<Draw> draws) override;
  void forget_draws() override;
  std::int32_t kept_draws() const override { return kKept; }
  void log_probs(Tensor logits, std::span<const TokenQuery> queries, std::span<float> out) override;

  /// Device [kept_draws()]: tokens of the last draws that were begun. Always the same place.
  const std::int32_t* kept() const { return reinterpret_cast<const std::int32_t*>(kept_.data()); }

 private:
  static constexpr std::int32_t kKept = 4096;
  static constexpr std::size_t kBegun = 2;

  /// Where kernels write results of draws, and what tells that they have.
  struct Results {
    HostMemory host;
    cudaEvent_t written = nullptr;
  };

  void reserve_stats(std::int64_t stats);

  Device& device_;
  Timeline& timeline_;
  Memory stats_;  // [rows or draws][chunks] of ChunkStats
  Memory kept_;
  Results results_[kBegun];
  std::size_t next_ = 0;   // of results_
  std::size_t begun_ = 0;  // and not finished: the ones before next_
  HostMemory queries_;     // of log_probs, and its results
};

}  // namespace dendrite::cuda
