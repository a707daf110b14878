#pragma once

#include "backend/cuda/attention/tree_arguments.h"
#include "backend/cuda/attention/tree_rows.cuh"
#include "backend/cuda/attention/tree_slices.cuh"
#include "backend/cuda/attention/tree_wgmma.cuh"
#include "backend/cuda/base/launch.cuh"
#include "backend/cuda/base/mma.cuh"

// How the attention kernel for wide heads and compute capability 9.0 divides shared memory, and how
// it brings K and V.
namespace dendrite::cuda {

/// Shared memory from an address that is a multiple of 1024.
template <int kDim>
struct WideLayout {
  static_assert(kDim % kPanelDims == 0, "panels are whole");
  static constexpr int kPanels = kDim / kPanelDims;
  /// Warpgroups that compute. Each has every other panel of values, and the scores of half of a
  /// block's tokens.
  static constexpr int kGroups = 2;
  static constexpr int kScored = kBlock / kGroups;
  static constexpr int kOutDims = kPanels > 8 ? 32 : 64;  // of a panel at a time, by registers
  static constexpr int kThreads = (kGroups + 1) * kWarpgroup;
  static constexpr int kQueryBytes = kTileRows * kDim * 2;
  static constexpr int kProbabilityBytes = kTileRows * kBlock * 2;
  static constexpr int kMaximaBytes = kTileRows * kGroups * 4;
  static constexpr int kOnesBytes = 1024;
  static constexpr int kRest =
      kQueryBytes + kProbabilityBytes + kOnesBytes + kMaximaBytes + 256 + 1024;
  static constexpr int kStages = (227 * 1024 - kRest) / kPanelBytes;
  static constexpr int kQueries = kStages * kPanelBytes;
  static constexpr int kProbabilities = kQueries + kQueryBytes;
  static constexpr int kOnes = kProbabilities + kProbabilityBytes;  // to sum probabilities
  static constexpr int kMaxima = kOnes + kOnesBytes;
  static constexpr int kBarriers = kMaxima + kMaximaBytes;
  static constexpr int kBytes = kQueries + kRest;
  static_assert(kStages <= 16, "barriers' room");

  /// Where values are keys, panels stay for both. The first ones, for which the ring has no room,
  /// come again. So that they may come last, values begin with the panel behind them:
  static constexpr int kAgain = kPanels > kStages ? kPanels - kStages : 0;
  __host__ __device__ static constexpr int value_panel(int number) {
    return (number + kAgain) % kPanels;
  }

  /// Floats of a thread block's groups: those of each warpgroup, [value][thread].
  static constexpr int kGroupValues =
      (kPanels + kGroups - 1) / kGroups * kPanelDims * kTileRows;  // of a warpgroup
};

/// The ring of panels [128 tokens][64 dims]: where the next one is, for who fills or empties it.
template <int kDim>
class WideRing {
 public:
  using Layout = WideLayout<kDim>;

  __device__ explicit WideRing(std::uint32_t shared) : shared_(shared) {}

  __device__ void init() const {
    for (int stage = 0; stage < Layout::kStages; ++stage) {
      init_barrier(full(stage), kWarpgroup);
      init_barrier(empty(stage), Layout::kGroups * 4);
    }
  }

  __device__ int stage() const { return stage_; }
  __device__ static int stage_behind(int stage, int panels) {
    return stage + panels < Layout::kStages ? stage + panels : stage + panels - Layout::kStages;
  }
  __device__ std::uint32_t panel(int stage) const { return shared_ + stage * kPanelBytes; }
  __device__ std::uint32_t full(int stage) const { return shared_ + Layout::kBarriers + 8 * stage; }
  __device__ std::uint32_t empty(int stage) const {
    return shared_ + Layout::kBarriers + 8 * (Layout::kStages + stage);
  }
  __device__ unsigned parity() const { return phase_; }
  __device__ void next() {
    if (++stage_ < Layout::kStages) return;
    stage_ = 0;
    phase_ ^= 1;
  }

 private:
  std::uint32_t shared_;
  int stage_ = 0;
  unsigned phase_ = 0;
};

/// The warpgroup that brings the panels of K, then those of V that are not K's, of each block.
/// Those that earlier passes stored it brings before the kernels ahead of this one are done: a pass
/// begins when everything before it is.
template <int kDim>
class WideProducer {
 public:
  __device__ WideProducer(const TreeAttentionArguments& args, std::uint32_t shared)
      : args_(args),
        ring_(shared),
        first_new_(*args.plan.first_new),
        lane_(static_cast<int>(threadIdx.x) % 32),
        row_(static_cast<int>(threadIdx.x) % kWarpgroup / kPieces),
        target_(row_ * kRowBytes + (threadIdx.x % kPieces ^ row_ % 8) * 16) {}

  __device__ void run() {
    const int slices = slice_count(args_);
    for (int work = static_cast<int>(blockIdx.x);; work += static_cast<int>(gridDim.x)) {
      const TreeTile tile = args_.plan.tiles[work / slices];
      if (tile.row_count == 0) break;
      bring(tile, slice_of(args_, work % slices).kv_head);
    }
    wait_copies<0>();
  }

 private:
  using Layout = WideLayout<kDim>;
  static constexpr int kPieces = kRowBytes / 16;  // of a panel's row
  static constexpr int kRowStep = kWarpgroup / kPieces;
  static constexpr int kCopies = kBlock / kRowStep;  // that a thread makes of a panel

  __device__ void bring(const TreeTile& tile, std::int64_t kv_head) {
    const std::byte* const keys =
        args_.kv.data + kv_head * args_.kv.head_vectors * (kDim * 2) + threadIdx.x % kPieces * 16;
    const std::byte* const values = keys + args_.kv.value_vectors * (kDim * 2);
    const int first_value = args_.kv.value_vectors > 0 ? 0 : Layout::kPanels - Layout::kAgain;
    const TreeBlock* block = args_.plan.blocks + tile.first_block;
    std::int32_t first_page = tile.first_page;
    for (int begin = tile.begin; begin < tile.end; begin += kBlock) {
      const int tokens = min(tile.end - begin, kBlock);
      int page = 0;  // of the block: the lane's
      if (lane_ << args_.kv.page_shift < tokens) page = args_.plan.pages[first_page + lane_];
      if (begin + kBlock < tile.end) first_page = (++block)->first_page;
      if (begin + tokens > first_new_) wait_for_earlier();
#pragma unroll 1
      for (int i = 0; i < Layout::kPanels; ++i) {
        copy(keys + i * kRowBytes, page, tile.low - begin, tokens);
      }
#pragma unroll 1
      for (int i = first_value; i < Layout::kPanels; ++i) {
        copy(values + Layout::value_panel(i) * kRowBytes, page, tile.low - begin, tokens);
      }
    }
  }

  /// A panel; zeros where nobody sees the token, outside of [low, end).
  __device__ void copy(const std::byte* source, int page, int low, int end) {
    const int stage = ring_.stage();
    wait_barrier(ring_.empty(stage), ring_.parity() ^ 1);
    const std::uint32_t target = ring_.panel(stage) + target_;
    const int page_mask = args_.kv.page_tokens - 1;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int row = row_ + i * kRowStep;
      const std::int64_t of_row = __shfl_sync(kAll, page, row >> args_.kv.page_shift);
      copy_async(target + i * kRowStep * kRowBytes,
                 source + of_row * args_.kv.page_stride + (row & page_mask) * (kDim * 2),
                 row >= low && row < end);
    }
    arrive_when_copied(ring_.full(stage));
    ring_.next();
  }

  const TreeAttentionArguments& args_;
  WideRing<kDim> ring_;
  int first_new_;
  int lane_;
  int row_;               // of a block: this thread copies rows row_ + i * kRowStep, 16 bytes each
  std::uint32_t target_;  // of the first one, in a panel
};

}  // namespace dendrite::cuda
