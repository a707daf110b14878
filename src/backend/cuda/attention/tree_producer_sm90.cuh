#pragma once

#include "backend/cuda/attention/tree_arguments.h"
#include "backend/cuda/attention/tree_codes.cuh"
#include "backend/cuda/attention/tree_rows.cuh"
#include "backend/cuda/attention/tree_slices.cuh"
#include "backend/cuda/attention/tree_wgmma.cuh"
#include "backend/cuda/base/launch.cuh"
#include "backend/cuda/base/mma.cuh"

// How the attention kernel for compute capability 9.0 deals out its work and brings K and V.
namespace dendrite::cuda {

constexpr int kThreads = 3 * kWarpgroup;  // two compute, and a warp of the last brings K and V

/// Shared memory from an address that is a multiple of 1024.
template <int kDim, KvFormat kFormat>
struct PairLayout {
  static constexpr int kPanels = panels_of(kDim);
  static constexpr int kChunkBytes = kPanels * kPanelBytes;
  static constexpr int kStages = 8 / kPanels;
  static constexpr int kQueryBytes = 64 * kPanels * kPanelDims * 2;  // of a warpgroup
  static constexpr int kGroupBytes = 64 * kPanels * kPanelDims * 4;  // of a warpgroup
  static constexpr int kQueries = kStages * kChunkBytes;
  static constexpr int kGroups = kQueries + 2 * kQueryBytes;
  static constexpr int kBarriers = kGroups + 2 * kGroupBytes;
  static constexpr int kOnes = kBarriers + 128;  // multiplied to sum probabilities
  static constexpr int kScales = kOnes + 1024;   // FP8: of each stage's tokens
  static constexpr int kScaleBytes = kFormat == KvFormat::kFP8 ? kStages * kBlock : 0;
  static constexpr int kBytes = kScales + kScaleBytes + 1024;
  static_assert(kBytes <= 227 * 1024, "what a thread block may have");
};

/// Threads of named barrier `id` wait for each other.
__device__ inline void meet(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
__device__ inline void announce(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
constexpr int kMeetWarpgroup = 1;  // and 2
constexpr int kMeetBoth = 3;
constexpr int kTurn = 4;  // and 5

/// A pair of tiles and the heads to work on.
struct Work {
  TreeTile tiles[2];
  Slice slice;
  bool shared;  // the tiles have the same tokens
};

/// What this thread block works on, in order.
class Works {
 public:
  __device__ explicit Works(const TreeAttentionArguments& args) : args_(args) {}

  __device__ bool next(Work& work) {
    const int index = dealt_work(round_, static_cast<int>(blockIdx.x), static_cast<int>(gridDim.x));
    ++round_;
    const int slices = slice_count(args_);
    const TreeTile* pair = args_.plan.tiles + index / slices * 2;
    work.tiles[0] = pair[0];
    work.tiles[1] = pair[1];
    work.slice = slice_of(args_, index % slices);
    work.shared = work.tiles[1].row_count > 0 &&
                  work.tiles[0].first_block == work.tiles[1].first_block &&
                  work.tiles[0].begin == work.tiles[1].begin;
    return work.tiles[0].row_count > 0;
  }

 private:
  const TreeAttentionArguments& args_;
  int round_ = 0;
};

/// The ring's barriers and the parity of each stage's next use.
template <int kDim, KvFormat kFormat>
class Ring {
 public:
  using Layout = PairLayout<kDim, kFormat>;

  __device__ explicit Ring(std::uint32_t shared) : shared_(shared) {}

  __device__ std::uint32_t chunk(int stage) const { return shared_ + stage * Layout::kChunkBytes; }
  __device__ std::uint32_t full(int stage) const { return shared_ + Layout::kBarriers + 8 * stage; }
  __device__ std::uint32_t empty(int stage) const {
    return shared_ + Layout::kBarriers + 8 * (Layout::kStages + stage);
  }
  __device__ std::uint32_t scales(int stage) const {
    return shared_ + Layout::kScales + stage * kBlock;
  }
  __device__ unsigned parity(int stage) const { return phases_ >> stage & 1; }
  __device__ void use(int stage) { phases_ ^= 1u << stage; }

 private:
  std::uint32_t shared_;
  unsigned phases_ = 0;
};

/// The warpgroup that brings K and V of each block. Those that earlier passes stored it brings
/// before the kernels ahead of this one are done: a pass begins when everything before it is.
///
/// In FP8 a thread's codes are widened by itself, once they are there. It begins copies as far
/// ahead as stages are free, and widens a chunk when the next one's stage is not.
template <int kDim, KvFormat kFormat>
class Producer {
 public:
  __device__ Producer(const TreeAttentionArguments& args, std::uint32_t shared)
      : args_(args),
        ring_(shared),
        first_new_(*args.plan.first_new),
        lane_(static_cast<int>(threadIdx.x % 32)),
        row_(static_cast<int>(threadIdx.x % kWarpgroup) / kRowPieces),
        target_(row_ * kRowBytes + piece_place<kFormat>(threadIdx.x % kRowPieces, row_)) {}

  __device__ void run() {
    Works works(args_);
    Work work;
    while (works.next(work)) bring(work);
    if constexpr (kIsCodes) {
      widen_until([] { return false; });
    }
    wait_copies<0>();
  }

 private:
  using Layout = PairLayout<kDim, kFormat>;
  static constexpr bool kIsCodes = kFormat == KvFormat::kFP8;
  static constexpr int kValueBytes = static_cast<int>(size_of(kFormat));
  static constexpr int kHalf = Layout::kStages / 2;
  static constexpr int kPageRowBytes = kPanelDims * kValueBytes;  // of a panel's row in a page
  static constexpr int kRowPieces = kPageRowBytes / 16;
  static constexpr int kRowStep = kWarpgroup / kRowPieces;

  /// Where a tile's copies have got to. What is read from memory is read ahead.
  struct Stream {
    int left;   // blocks
    int stage;  // of the next chunk
    int low;    // tokens of the block that some row sees: [low, end)
    int end;
    bool fresh;  // this pass may store some of them
    int page;    // of the block: the lane's
    int next_begin;
    int next_end;
    int next_page;
    const TreeBlock* later;
    int later_first;  // index of the block's first page after that
  };

  __device__ Stream start(const TreeTile& tile, int stage) const {
    Stream stream{};
    stream.left = tile.block_count;
    stream.stage = stage;
    stream.later = args_.plan.blocks + tile.first_block;
    stream.later_first = tile.first_page;
    find_next(stream, 1);
    step(stream, tile.low);
    return stream;
  }
  /// Of the block `ahead` blocks after the stream's, and the index of the first page after it.
  __device__ void find_next(Stream& stream, int ahead) const {
    stream.next_begin = stream.later->begin;
    stream.next_end = stream.later->end;
    const int tokens = stream.next_end - stream.next_begin;
    if (lane_ << args_.kv.page_shift < tokens) {
      stream.next_page = args_.plan.pages[stream.later_first + lane_];
    }
    ++stream.later;
    if (stream.left > ahead) stream.later_first = stream.later->first_page;
  }
  __device__ void step(Stream& stream, int low) const {
    stream.low = low - stream.next_begin;
    stream.end = stream.next_end - stream.next_begin;
    stream.fresh = stream.next_end > first_new_;
    stream.page = stream.next_page;
    if (stream.left > 1) find_next(stream, 2);
  }

  __device__ void bring(const Work& work) {
    const TreeTile& one = work.tiles[0];
    const TreeTile& other = work.tiles[1];
    // Of a page's vectors, K's of the head are `vectors` and on.
    const int vectors = work.slice.kv_head * args_.kv.head_vectors;
    const std::byte* keys =
        args_.kv.data + vectors * kDim * kValueBytes + threadIdx.x % kRowPieces * 16;
    Stream first = start(one, 0);
    Stream second{};
    if (!work.shared && other.row_count > 0) second = start(other, kHalf);
    const int first_end = work.shared ? Layout::kStages : kHalf;
    while (first.left > 0 || second.left > 0) {
      // K, then V. (A loop, since copying in FP8 takes many instructions.)
#pragma unroll kIsCodes ? 1 : 2
      for (int part = 0; part < 2; ++part) {
        const int of_values = part * args_.kv.value_vectors;
        const std::byte* from = keys + of_values * kDim * kValueBytes;
        const int of_part = vectors + of_values;
        if (first.left > 0) {
          copy(first, from, of_part, 0, first_end);
          if (part == 1 && --first.left > 0) step(first, one.low);
        }
        if (second.left > 0) {
          copy(second, from, of_part, kHalf, Layout::kStages);
          if (part == 1 && --second.left > 0) step(second, other.low);
        }
      }
    }
  }

  /// K or V of the block; zeros where nobody sees the token, and behind the head's end. `vectors`:
  /// the head's first in a page. Stages go round in [stage_begin, stage_end).
  __device__ void copy(Stream& stream, const std::byte* source, int vectors, int stage_begin,
                       int stage_end) {
    if constexpr (!kIsCodes) {
      if (stream.fresh) wait_for_earlier();
    }
    const int stage = stream.stage;
    const int page_mask = args_.kv.page_tokens - 1;
    const std::uint32_t target = ring_.chunk(stage) + target_;
    const std::uint32_t empty = ring_.empty(stage);
    const unsigned parity = ring_.parity(stage) ^ 1;
    if constexpr (kIsCodes) {
      // Who reads the stage may wait for chunks that are not widened yet. And what is on its way is
      // widened before the wait for earlier kernels.
      const bool waits = stream.fresh && !waited_;
      widen_until([&] { return !waits && __all_sync(kAll, test_barrier(empty, parity)) != 0; });
      if (waits) wait_for_earlier();
      waited_ = waited_ || waits;
    }
    wait_barrier(empty, parity);
#pragma unroll
    for (int i = 0; i < kBlock / kRowStep; ++i) {
      const int row = row_ + i * kRowStep;
      const std::int64_t page = __shfl_sync(kAll, stream.page, row >> args_.kv.page_shift);
      const std::byte* from =
          source + page * args_.kv.page_stride + (row & page_mask) * (kDim * kValueBytes);
      const bool take = row >= stream.low && row < stream.end;
#pragma unroll
      for (int panel = 0; panel < Layout::kPanels; ++panel) {
        // Of the head, from the panel on:
        const int left = kDim * kValueBytes / 16 - panel * kRowPieces;
        copy_async(target + panel * kPanelBytes + i * kRowStep * kRowBytes,
                   from + panel * kPageRowBytes,
                   take && static_cast<int>(threadIdx.x) % kRowPieces < left);
      }
      if constexpr (kIsCodes) {
        if (copies_scales(row_)) {
          const std::byte* scales = args_.kv.data + page * args_.kv.page_stride +
                                    args_.kv.scales_offset + vectors + (row & page_mask);
          copy_scales(ring_.scales(stage) + row, scales, row < stream.end);
        }
      }
    }
    if constexpr (kIsCodes) {
      commit_copies();
      copied_stages_ |= static_cast<std::uint32_t>(stage) << 4 * copied_;
      ++copied_;
    } else {
      arrive_when_copied(ring_.full(stage));
    }
    ring_.use(stage);
    stream.stage = stage + 1 < stage_end ? stage + 1 : stage_begin;
  }

  /// Widens chunks that are copied, oldest first: all of them, unless `enough` says so before.
  template <typename Enough>
  __device__ void widen_until(Enough enough) {
#pragma unroll 1
    while (copied_ > 0 && !enough()) widen_oldest();
  }

  /// The chunk that was copied first of those that are not widened.
  __device__ void widen_oldest() {
    switch (copied_) {
      case 1:
        wait_copies<0>();
        break;
      case 2:
        wait_copies<1>();
        break;
      case 3:
        wait_copies<2>();
        break;
      default:
        wait_copies<3>();
    }
    __syncwarp();  // other lanes copied scales
    const auto stage = static_cast<int>(copied_stages_ & 15);
    copied_stages_ >>= 4;
    --copied_;
    const std::uint32_t target = ring_.chunk(stage) + target_;
    const std::uint32_t scales = ring_.scales(stage) + row_;
#pragma unroll 2  // all of them take too many instructions for their cache
    for (int i = 0; i < kBlock / kRowStep; ++i) {
      const std::uint32_t factor = load_pair_factor(scales + i * kRowStep);
#pragma unroll
      for (int panel = 0; panel < Layout::kPanels; ++panel) {
        widen_in_place(target + panel * kPanelBytes + i * kRowStep * kRowBytes, factor);
      }
    }
    fence_shared_for_products();
    arrive(ring_.full(stage));
  }

  const TreeAttentionArguments& args_;
  Ring<kDim, kFormat> ring_;
  int first_new_;
  int lane_;
  int row_;               // of a block: this thread copies rows row_ + i * kRowStep, 16 bytes each
  std::uint32_t target_;  // of the first one, in a chunk
  // FP8: chunks that are copied and not widened, four bits each for their stages, oldest first.
  std::uint32_t copied_stages_ = 0;
  int copied_ = 0;
  bool waited_ = false;  // for earlier kernels
};

}  // namespace dendrite::cuda
