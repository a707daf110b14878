#pragma once

#include "backend/cuda/attention/tree_kernels.h"
#include "backend/cuda/attention/tree_loader.cuh"
#include "backend/cuda/attention/tree_slices.cuh"
#include "backend/cuda/attention/tree_tile.cuh"
#include "backend/cuda/base/launch.cuh"

// Attention over a tree of pages by tensor cores (mma.sync), K and V in bf16 or FP8. A tile has the
// rows of a slice of one KV head's query heads, packed: packed row i is the slice's query head i %
// heads of row i / heads. Four warps are spread kM x kN: over packed rows, and over the tokens of S
// = Q K^T and the dims of P V. K and V come through shared memory in chunks of [128 tokens][64
// dims], a ring of kStages filled in the background across tiles; 16-byte pieces of a chunk's row
// are swizzled (piece ^ row % 8). Where 64 does not divide the head's dims its last chunk ends with
// zeros: S leaves them out, P V makes columns of nothing from them.
//
// Order of operations (tree_plan.h): a block of 128 tokens from a fresh state: scores by a chain
// over the dims, their maximum, probabilities in bf16, their sum and P V by a chain over the
// tokens. A chain's elements depend on their own row and column alone, so neither kM x kN nor
// company shows in the bits; tokens that a row does not see have probability 0, which adds nothing,
// and V of slots that may hold anything is read as 0. Blocks are folded to runs, runs to groups, in
// f32.
// Floor: unique pages' bytes over bandwidth, or 4 rows tokens head_dim heads FLOP.
// Source of the running softmax: Milakov & Gimelshein 2018, arXiv:1805.02867.
namespace dendrite::cuda {

/// Shared memory: queries, then or behind them probabilities, row maxima, group states, the ring,
/// scales.
template <int kDim, KvFormat kFormat>
struct TileLayout {
  static constexpr int kRows = static_cast<int>(tile_rows(kDim));
  static constexpr int kQueries = kRows * panels_of(kDim) * kChunkRowBytes;
  static constexpr int kProbabilities = queries_stay(kDim) ? kQueries : 0;
  static constexpr int kMaxima =
      queries_stay(kDim) ? kQueries + kRows * kProbabilityRowBytes : kQueries;
  static constexpr int kGroups = kMaxima + 64 * 4;
  static constexpr int kRing = kGroups + kRows * panels_of(kDim) * kPanelDims * 4;
  static constexpr int kStageBytes = kChunkBytes + (kFormat == KvFormat::kFP8 ? kBlock : 0);
  static constexpr int bytes(int stages) { return kRing + stages * kStageBytes; }
  /// As many as let two blocks share a multiprocessor; fewer on the smallest devices.
  static constexpr int kStages = kDim > 256 ? 3 : 4;
  static_assert(bytes(kStages - 1) <= 99 * 1024, "what the smallest devices have");
};

template <int kM, int kN, bool kCaps, int kDim, int kStages, KvFormat kFormat>
__device__ __forceinline__ void work_on_tile(const TreeAttentionArguments& args,
                                             Loader<kDim, kStages, kFormat>& loader,
                                             std::byte* shared, const TreeTile& tile,
                                             int first_head) {
  using Layout = TileLayout<kDim, kFormat>;
  const std::uint32_t begin = shared_address(shared);
  const TileRoom room{begin, begin + Layout::kProbabilities,
                      reinterpret_cast<float*>(shared + Layout::kMaxima),
                      reinterpret_cast<float*>(shared + Layout::kGroups)};
  TileWarp<kDim, Loader<kDim, kStages, kFormat>, kM, kN, kCaps>(args, loader, room, tile,
                                                                first_head)
      .run();
}

/// grid: as many as run at once; block kTileThreads
template <int kDim, int kStages, KvFormat kFormat, bool kCaps>
__global__ void __launch_bounds__(kTileThreads, 2)
    tile_kernel(const __grid_constant__ TreeAttentionArguments args) {
  using Layout = TileLayout<kDim, kFormat>;
  extern __shared__ __align__(128) std::byte shared[];
  const int slices = slice_count(args);
  Loader<kDim, kStages, kFormat> loader(args, shared_address(shared) + Layout::kRing);
  wait_for_earlier();
  loader.fill();
  for (int work = static_cast<int>(blockIdx.x);; work += static_cast<int>(gridDim.x)) {
    const TreeTile tile = args.plan.tiles[work / slices];
    if (tile.row_count == 0) break;
    const int first_head = slice_of(args, work % slices).first_head;
    const int packed_rows = tile.row_count * static_cast<int>(args.slices.heads);
    if (Layout::kRows == 16 || packed_rows <= 16) {
      work_on_tile<1, 4, kCaps>(args, loader, shared, tile, first_head);
    } else if constexpr (Layout::kRows > 16) {
      if (Layout::kRows == 32 || packed_rows <= 32) {
        work_on_tile<2, 2, kCaps>(args, loader, shared, tile, first_head);
      } else if constexpr (Layout::kRows > 32) {
        work_on_tile<4, 1, kCaps>(args, loader, shared, tile, first_head);
      }
    }
  }
  // No earlier: merges that wait pile up on the first multiprocessors that are free.
  let_next_begin();
}

template <int kDim, KvFormat kFormat>
void TileKernel<kDim, kFormat>::prepare(int shared_bytes) {
  using Layout = TileLayout<kDim, kFormat>;
  const auto allow = [](auto kernel, int bytes) {
    check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes),
          "attention");
  };
  constexpr int kMost = Layout::kStages;
  if (Layout::bytes(kMost) <= shared_bytes) {
    allow(tile_kernel<kDim, kMost, kFormat, false>, Layout::bytes(kMost));
    allow(tile_kernel<kDim, kMost, kFormat, true>, Layout::bytes(kMost));
  } else {
    allow(tile_kernel<kDim, kMost - 1, kFormat, false>, Layout::bytes(kMost - 1));
    allow(tile_kernel<kDim, kMost - 1, kFormat, true>, Layout::bytes(kMost - 1));
  }
}

template <int kDim, KvFormat kFormat>
void TileKernel<kDim, kFormat>::launch(const TreeAttentionArguments& args, const TreeGrid& grid,
                                       cudaStream_t stream) {
  using Layout = TileLayout<kDim, kFormat>;
  constexpr int kMost = Layout::kStages;
  const bool most = Layout::bytes(kMost) <= grid.shared_bytes;
  auto* kernel = most ? tile_kernel<kDim, kMost, kFormat, false>
                      : tile_kernel<kDim, kMost - 1, kFormat, false>;
  if (args.cap_factor > 0) {
    kernel = most ? tile_kernel<kDim, kMost, kFormat, true>
                  : tile_kernel<kDim, kMost - 1, kFormat, true>;
  }
  launch_early(kernel, dim3(static_cast<unsigned>(grid.workers)), kTileThreads,
               static_cast<std::size_t>(Layout::bytes(most ? kMost : kMost - 1)), stream, args);
}

}  // namespace dendrite::cuda
