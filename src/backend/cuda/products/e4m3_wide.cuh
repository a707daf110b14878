#pragma once

#include "backend/cuda/base/mma.cuh"
#include "backend/cuda/base/wgmma.cuh"
#include "backend/cuda/products/e4m3_rows.h"
#include "backend/cuda/products/e4m3_scales.cuh"
#include "backend/cuda/products/few_rows_multiplier.cuh"

// The sums of e4m3_chain.cuh, to the bit, of many rows and units of 256 outputs: of a band of 128
// rows and a unit a third less is read for each product than with half as many outputs. Pieces of a
// warpgroup's products are added while its next ones run. x is the operand in registers: shared
// memory could not give both operands as fast as tensor cores take them.
namespace dendrite::cuda::e4m3 {

#ifdef DENDRITE_SM90A

using few_rows::Cursor;
using few_rows::kTileRowBytes;
using few_rows::Rings;

/// See few_rows::Multiplier. kSquares: as of E4m3Chain; weights have blocks, in which the outputs
/// of each two pieces begin. Requires stages and chunks of one tile.
template <bool kSquares>
class E4m3Wide {
 public:
  using Args = Arguments;
  static constexpr int kPiece = 64;
  static constexpr int kPieces = 4;
  static constexpr bool kRowScales = true;
  static constexpr bool kColumnScales = !kSquares;
  static constexpr int kMostOfSixteen = 0;
  static constexpr bool kSixteenAlone = false;
  static constexpr bool kPairsSilus = true;  // (rows of weights are a multiple of 8)
  static constexpr int kEarlyOutputs = 0;

  __device__ E4m3Wide(const Args& args, const Rings& rings)
      : args_(args),
        rings_(rings),
        stage_{args.stages},
        chunk_{args.chunks},
        row_places_(threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, args.tile_rows) {
    const int lane = static_cast<int>(threadIdx.x) % 32;
    const int row = static_cast<int>(threadIdx.x) / 32 * 16 + lane % 16;
    // As copies exchange the eight 16 bytes of a row (tensor_map.h).
    for (int step = 0; step < kSteps; ++step) {
      x_at_[step] = row * kTileRowBytes + (2 * step + lane / 16 ^ row % 8) * 16;
    }
  }

  __device__ void multiply(float (&sums)[kPieces][kPiece / 2], int unit) {
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
      for (float& sum : sums[piece]) sum = 0;
    }
    const Columns columns(args_, unit);
    if constexpr (kSquares) {
      for (int i = 0; i < kBlocks; ++i) blocks_[i] = columns.of_block(2 * i * kEights);
    }
    Scales next;
    fetch(next, 0);
    std::uint32_t x[kSteps][4];
    float even[kPiece / 2];
    float odd[kPiece / 2];
    enter(x, next);
    begin(even, x, 0);
#pragma unroll 1
    for (int tile = 0;; ++tile) {
      const Scales scales = next;
      fetch(next, tile + 1);
      begin(odd, x, 1);
      end<1>(sums[0], even, scales, 0);
      begin(even, x, 2);
      end<1>(sums[1], odd, scales, 0);
      begin(odd, x, 3);
      end<1>(sums[2], even, scales, 1);
      wait_products<0>();  // before x changes
      leave(scales);
      if (tile + 1 == args_.tiles) {
        end<0>(sums[3], odd, scales, 1);
        break;
      }
      enter(x, next);
      begin(even, x, 0);
      end<1>(sums[3], odd, scales, 1);
    }
    if constexpr (!kSquares) {
      columns.visit_columns([&](int i, float2 of_columns) {
        Columns::apply(sums[i / kEights] + i % kEights * 4, of_columns);
      });
    }
  }

 private:
  using Columns = UnitScales<kPiece * kPieces, false>;
  static constexpr int kEights = kPiece / 8;
  static constexpr int kSteps = kTileRowBytes / 32;
  static constexpr int kBlocks = kPieces / 2;

  /// Of a tile: of the thread's two rows, and of weights.
  struct Scales {
    float rows[2];
    float blocks[kSquares ? kBlocks : 1];
  };

  /// Reads those of weights.
  __device__ void fetch(Scales& scales, int tile) const {
    if constexpr (kSquares) {
      if (tile >= args_.tiles) return;
#pragma unroll
      for (int i = 0; i < kBlocks; ++i) scales.blocks[i] = __ldg(blocks_[i] + tile);
    }
  }

  /// Waits for the next tile and takes this warp's rows of x and their scales.
  __device__ void enter(std::uint32_t (&x)[kSteps][4], Scales& scales) {
    wait_barrier(rings_.x.full + 8 * chunk_.slot, chunk_.parity);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      load_matrices(x[step], rings_.x.slot(chunk_.slot) + x_at_[step]);
    }
    const std::uint32_t at = rings_.scales_of(chunk_.slot) + row_places_.first;
    scales.rows[0] = load_scale(at);
    scales.rows[1] = load_scale(at + row_places_.to_second);
    wait_barrier(rings_.weights.full + 8 * stage_.slot, stage_.parity);
    weights_ = tile_descriptor(rings_.weights.slot(stage_.slot));
  }
  /// The tile's slots, whose products are done.
  __device__ void leave(const Scales& scales) {
    __syncwarp();
    if (threadIdx.x % 32 == 0) {
      arrive(
          once_loaded(rings_.x.free + 8 * chunk_.slot, scales.rows[0], scales.rows[1], args_.rows));
      arrive(rings_.weights.free + 8 * stage_.slot);
    }
    chunk_.next();
    stage_.next();
  }

  __device__ void begin(float (&of_tile)[kPiece / 2], const std::uint32_t (&x)[kSteps][4],
                        int piece) const {
    begin_products();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      multiply_add_e4m3(of_tile, x[step], weights_ + piece * kPiece * kTileRowBytes / 16 + step * 2,
                        step > 0);
    }
    commit_products();
  }
  /// Adds a piece once all but kPending of those that were begun are done. block: of weights
  template <int kPending>
  static __device__ void end(float (&sums)[kPiece / 2], float (&of_tile)[kPiece / 2],
                             const Scales& scales, int block) {
    wait_products<kPending>();
    take_sums(of_tile);
    float first = scales.rows[0];
    float second = scales.rows[1];
    if constexpr (kSquares) {
      first = __fmul_rn(first, scales.blocks[block]);
      second = __fmul_rn(second, scales.blocks[block]);
    }
#pragma unroll
    for (int i = 0; i < kPiece / 2; ++i) {
      sums[i] = __fmaf_rn(of_tile[i], i % 4 < 2 ? first : second, sums[i]);
    }
  }

  const Args& args_;
  const Rings& rings_;
  Cursor stage_;
  Cursor chunk_;
  const float* blocks_[kBlocks] = {};
  std::uint32_t x_at_[kSteps];  // in a tile, what this lane says a matrix's row is
  RowPlaces row_places_;
  std::uint32_t weights_ = 0;  // the tile's descriptor
};

#endif  // DENDRITE_SM90A

}  // namespace dendrite::cuda::e4m3
