#pragma once

#include <vector>

#include "backend/cuda/base/device.h"
#include "backend/cuda/base/timeline.h"
#include "backend/logits_sampler.h"

namespace dendrite::cuda {

/// What a chunk of a row's logits holds. Chunks are cut at fixed tokens.
struct ChunkStats {
  float max;        // -inf: nothing but -inf and NaN
  std::int32_t at;  // its token, the lowest
  double raw;       // sum exp(x - max)
  double scaled;    // sum exp((x - max) / temperature)
};

/// The same where draws have masks: max, at and scaled are of the tokens that may be drawn.
struct MaskedChunkStats : ChunkStats {
  float raw_max;  // what `raw` refers to: of all tokens
};

/// See LogitsSampler. Floor: the logits once from L2 (a row of 128256: 0.5 MB), and the latency of
/// two launches; with masks of three, and each mask (16 KB) once from the host.
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
  void log_probs(Tensor logits, std::span<TokenQuery> queries) override;

  /// Device [kept_draws()]: tokens of the last draws that were begun. Always the same place.
  std::int32_t* kept() const { return reinterpret_cast<std::int32_t*>(kept_.data()); }

 private:
  static constexpr std::int32_t kKept = 4096;
  static constexpr std::size_t kBegun = 2;

  /// Where kernels write results of draws, and what tells that they have; before that, they read
  /// the masks.
  struct Results {
    HostMemory host;
    HostMemory masks;
    HostMemory edits;
    HostMemory rows;  // [draws that want theirs][vocab]
    std::int64_t vocab = 0;
    cudaEvent_t written = nullptr;
  };

  /// Enqueues the copy of every mask, those that draws share once, and of one of ones for draws
  /// without. Returns where each draw's will be; empty if none has one, and none has edits.
  std::vector<const std::uint32_t*> upload_masks(std::span<const Draw> draws, std::int64_t vocab,
                                                 Results& place);

  /// Where a draw's edits are, which kernels read in the host's memory.
  struct HostEdits {
    const LogitChange* changes = nullptr;
    const std::int32_t* bans = nullptr;
  };
  std::vector<HostEdits> stage_edits(std::span<const Draw> draws, Results& place);
  /// Of a launch's draws: copies of their rows with the edits; edited[i] stays null where the i-th
  /// has none.
  void edit_rows(Tensor logits, std::span<const Draw> draws, std::span<const HostEdits> staged,
                 const float** edited);

  /// Enqueues the copies of rows that draws want at the host.
  void copy_rows(Tensor logits, std::span<const Draw> draws, Results& place);

  Device& device_;
  Timeline& timeline_;
  Memory stats_;  // [rows or draws][chunks] of ChunkStats or MaskedChunkStats
  Memory kept_;
  Memory masks_;   // of the last draws that were begun, each once
  Memory edited_;  // [a launch's draws with edits][vocab], of the last launch
  Results results_[kBegun];
  std::size_t next_ = 0;   // of results_
  std::size_t begun_ = 0;  // and not finished: the ones before next_
  HostMemory queries_;     // of log_probs
};

}  // namespace dendrite::cuda
