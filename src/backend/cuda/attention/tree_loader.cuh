#pragma once

#include <utility>

#include "backend/cuda/attention/tree_codes.cuh"
#include "backend/cuda/attention/tree_slices.cuh"
#include "backend/cuda/attention/tree_tile.cuh"

namespace dendrite::cuda {

/// threadIdx.x, read anew: what is computed from it is not kept in registers from tile to tile.
__device__ inline int thread_index() {
  int index;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(index));
  return index;
}

/// Brings the chunks of all tiles of this thread block, in order: K, then V of each block. It is
/// kStages - 1 chunks ahead of who uses them. In FP8 each thread widens the codes that it copied.
/// Shared memory: kStages chunks, then in FP8 the scales of each.
template <int kDim, int kStages, KvFormat kFormat>
class Loader {
 public:
  static constexpr int kChunks = 2 * panels_of(kDim);  // a block

  __device__ Loader(const TreeAttentionArguments& args, std::uint32_t ring)
      : args_(args),
        first_row_(static_cast<int>(threadIdx.x) / kRowPieces),
        target_(ring + first_row_ * kChunkRowBytes +
                piece_place<kFormat>(threadIdx.x % kRowPieces, first_row_)),
        ring_(ring),
        work_(static_cast<int>(blockIdx.x)) {
    begin_tile();
  }

  __device__ void fill() { fill(std::make_integer_sequence<int, kStages - 1>()); }

  /// Waits for chunk kChunk of the next block, which stays until the call after. For all threads of
  /// the thread block.
  template <int kChunk>
  __device__ std::uint32_t next() {
    wait_copies<kStages - 2>();
    if constexpr (kFormat == KvFormat::kFP8) widen();
    __syncthreads();
    issue<(kChunk + kStages - 1) % kChunks>();
    const std::uint32_t chunk = ring_ + used_ * kChunkBytes;
    used_ = used_ + 1 == kStages ? 0 : used_ + 1;
    return chunk;
  }
  __device__ void done() const {}
  __device__ void meet() const { __syncthreads(); }
  __device__ static int thread() { return thread_index(); }

 private:
  static constexpr int kValueBytes = static_cast<int>(size_of(kFormat));
  static constexpr int kRowPieces = kPanelDims * kValueBytes / 16;  // of a chunk's row in a page
  static constexpr int kRowStep = kTileThreads / kRowPieces;
  static constexpr int kCopies = kBlock / kRowStep;  // that a thread makes of a chunk

  template <int... kIndices>
  __device__ void fill(std::integer_sequence<int, kIndices...>) {
    (issue<kIndices % kChunks>(), ...);
  }

  __device__ void begin_tile() {
    const int slices = slice_count(args_);
    const TreeTile tile = args_.plan.tiles[work_ / slices];
    more_ = tile.row_count > 0;
    if (!more_) return;
    block_ = tile.begin;
    end_ = tile.end;
    low_ = tile.low;
    next_block_ = args_.plan.blocks + tile.first_block;
    const std::int64_t kv_head = slice_of(args_, work_ % slices).kv_head;
    const std::int64_t vectors = kv_head * args_.kv.head_vectors;
    const std::byte* source =
        args_.kv.data + vectors * kDim * kValueBytes + threadIdx.x % kRowPieces * 16;
    const int mask = args_.kv.page_tokens - 1;
    source_[0] = source + (first_row_ & mask) * kDim * kValueBytes;
    source_[1] = source + ((first_row_ + kRowStep) & mask) * kDim * kValueBytes;
    if constexpr (kFormat == KvFormat::kFP8) {
      scales_ = args_.kv.data + args_.kv.scales_offset + vectors + (first_row_ & mask);
    }
    find_pages(tile.first_page);
  }

  /// Of block_, whose pages begin at `first_page` of the plan's list.
  __device__ void find_pages(std::int32_t first_page) {
    const std::int32_t* pages = args_.plan.pages + first_page;
    const int last = min(end_ - block_, kBlock) - 1;
    taken_ = 0;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      const int row = first_row_ + i * kRowStep;
      pages_[i] = pages[min(row, last) >> args_.kv.page_shift];
      taken_ |= block_ + row >= low_ && row <= last ? 16 << i : 0;
    }
    if (block_ + kBlock < end_) following_page_ = (++next_block_)->first_page;
  }

  template <int kChunk>
  __device__ void issue() {
    if (more_) {
      constexpr bool kIsKeys = kChunk < kChunks / 2;
      const int offset = (kIsKeys ? 0 : args_.kv.value_vectors * kDim * kValueBytes) +
                         kChunk % (kChunks / 2) * kPanelDims * kValueBytes;
      const std::uint32_t target = target_ + filled_ * kChunkBytes;
      // The last chunk may have less of the head: zeros behind it.
      constexpr int kLeft = kDim * kValueBytes / 16 - kChunk % (kChunks / 2) * kRowPieces;
      const int taken = static_cast<int>(threadIdx.x) % kRowPieces < kLeft ? taken_ : 0;
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        copy_async(target + i * kRowStep * kChunkRowBytes,
                   source_[i % 2] + pages_[i] * args_.kv.page_stride + offset, taken >> i & 16);
      }
      if constexpr (kFormat == KvFormat::kFP8) {
        if (copies_scales(first_row_)) {
          const std::byte* scales = scales_ + (kIsKeys ? 0 : args_.kv.value_vectors);
#pragma unroll
          for (int i = 0; i < kCopies; ++i) {  // all of these pages are the block's
            copy_scales(scales_at(filled_) + i * kRowStep,
                        scales + pages_[i] * args_.kv.page_stride, true);
          }
        }
      }
      filled_ = filled_ + 1 == kStages ? 0 : filled_ + 1;
      if constexpr (kChunk == kChunks - 1) advance();
    }
    commit_copies();
  }

  /// Of a stage: that of this thread's first row.
  __device__ std::uint32_t scales_at(int stage) const {
    return ring_ + kStages * kChunkBytes + stage * kBlock + first_row_;
  }
  /// What this thread copied of the next chunk, which is there.
  __device__ void widen() const {
    __syncwarp();  // other lanes copied scales
    const std::uint32_t target = target_ + used_ * kChunkBytes;
#pragma unroll
    for (int i = 0; i < kCopies; ++i) {
      widen_in_place(target + i * kRowStep * kChunkRowBytes,
                     load_pair_factor(scales_at(used_) + i * kRowStep));
    }
  }

  __device__ void advance() {
    block_ += kBlock;
    if (block_ < end_) return find_pages(following_page_);
    work_ += static_cast<int>(gridDim.x);
    begin_tile();
  }

  const TreeAttentionArguments& args_;
  int first_row_;  // this thread copies rows first_row_ + i * kRowStep, 16 bytes each
  std::uint32_t target_;
  std::uint32_t ring_;
  int work_;  // tile and slice of heads
  bool more_ = false;
  int block_ = 0;
  int end_ = 0;
  int low_ = 0;
  int filled_ = 0;
  int used_ = 0;
  int taken_ = 0;  // 16 << i: bytes of copy i, none where nobody sees the token
  const TreeBlock* next_block_ = nullptr;  // the block in hand, in TreePlan::blocks
  std::int32_t following_page_ = 0;        // first of the block after it
  const std::byte* source_[2] = {};    // in page 0; pages of 32 tokens hold two of a thread's rows
  const std::byte* scales_ = nullptr;  // FP8: of the first row's keys in page 0
  std::int32_t pages_[kCopies] = {};
};

}  // namespace dendrite::cuda
