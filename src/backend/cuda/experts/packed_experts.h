#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "backend/cuda/experts/experts.h"
#include "backend/cuda/products/packed_layout.h"

// Products of experts whose weights are packed, as products.cu has them of bf16. A file of one
// statement, packed_*.cu, makes a layout's kernels (packed_experts.cuh).
namespace dendrite::cuda::packed {

/// Rows of a pass whose items are all of one eight of rows.
inline constexpr std::int32_t kFewRows = 8;

/// How a kernel cuts its work. kFew: for passes of kFewRows at most.
template <bool kFew>
struct ExpertCut {
  static constexpr int kWarps = kFew ? 2 : 8;
  static constexpr int kThreads = 32 * kWarps;
  static constexpr int kBlocks = kFew ? 8 : 2;     // of a multiprocessor
  static constexpr int kDownTiles = kFew ? 1 : 2;  // rows of tiles of `down` that a warp has
};

/// Rows of an item in shared memory, some columns at a time, two such pieces by turns.
template <bool kFew, int kRowTiles>
struct RowPiece {
  static constexpr int kRows = 8 * kRowTiles;
  static constexpr int kTiles = kFew ? 2 : 8 / kRowTiles;  // of columns
  static constexpr int kColumns = kTiles * PackedLayout::kColumns;
  static constexpr int kRowBytes = kColumns * 2 + 16;  // eight rows lie in different banks
  static constexpr int kBytes = kRows * kRowBytes;
};

template <bool kFew>
inline constexpr int kPieceRoom =
    kFew ? RowPiece<true, 1>::kBytes : RowPiece<false, kItemRows / 8>::kBytes;
static_assert(RowPiece<false, 1>::kBytes <= kPieceRoom<false> &&
              RowPiece<false, 2>::kBytes <= kPieceRoom<false> &&
              RowPiece<false, 4>::kBytes <= kPieceRoom<false>);

struct ExpertKernels {
  /// (arguments, kind, parts of an item)
  using Kernel = void (*)(ExpertsArguments, int, int);

  PackedLayout layout{};
  Kernel gate_ups[2] = {};  // of few rows, of any
  Kernel downs[2] = {};
};

template <class Q>
const ExpertKernels& expert_kernels_of();

/// Those of a layout that there are packed weights in, ready to be launched.
const ExpertKernels& prepare_expert_kernels(const PackedLayout& layout);

/// See launch_gate_ups(), launch_ups() and launch_downs().
void launch_packed_gate_ups(const ExpertKernels& kernels, const ExpertsArguments& args, int kind,
                            int multiprocessors, cudaStream_t stream);
void launch_packed_ups(const ExpertKernels& kernels, const ExpertsArguments& args, int kind,
                       int multiprocessors, cudaStream_t stream);
void launch_packed_downs(const ExpertKernels& kernels, const ExpertsArguments& args, int kind,
                         int multiprocessors, cudaStream_t stream);

}  // namespace dendrite::cuda::packed
