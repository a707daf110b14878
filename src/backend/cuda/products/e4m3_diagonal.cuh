#pragma once

#include <algorithm>

#include "backend/cuda/base/wgmma.cuh"
#include "backend/cuda/products/e4m3_rows.h"
#include "backend/cuda/products/e4m3_scales.cuh"
#include "backend/cuda/products/few_rows_multiplier.cuh"

// The sums of e4m3_chain.cuh, to the bit, of few rows and units of few outputs. There most of an
// instruction's 64 rows would be none of x's. Here they are those of several tiles, which lie
// behind one another in the ring of x, times the outputs of as many tiles, which do so in the ring
// of weights: a tile's sums are on the diagonal of the result, and nothing else of it is looked at.
// Warps hand them over in shared memory, and each adds some of all tiles in order.
namespace dendrite::cuda::e4m3 {

/// Rows of x in a tile, and what follows from them.
template <int kRows>
struct DiagonalTiles {
  static constexpr int kTiles = std::min(4, 64 / kRows);  // of an instruction
  static constexpr int kRowEights = kRows / 8;
  static_assert(kRows % 8 == 0);

  static constexpr int most_outputs() { return 128 / kTiles; }
  /// Tiles that are added at once.
  static constexpr int batch(int outputs) { return kRows <= 8 && outputs <= 24 ? 8 : 4; }
  /// Of one of the two batches that are handed over.
  static constexpr int hand_bytes(int outputs) {
    return batch(outputs) * kRowEights * (outputs / 8) * few_rows::kEightBytes;
  }
};

#ifdef DENDRITE_SM90A

using few_rows::Cursor;
using few_rows::kTileRowBytes;
using few_rows::meet;
using few_rows::Rings;

/// See few_rows::Multiplier. kSquares: as of E4m3Chain. Requires tiles of kRows rows of x, at most
/// as many rows, stages of whole batches, and twice hand_bytes() behind the rings.
template <int kOutputs, bool kSquares, bool kHeads, int kRows>
class E4m3Diagonal {
 public:
  using Args = Arguments;
  using Columns = UnitScales<kOutputs, kHeads>;
  static constexpr int kPiece = kOutputs;
  static constexpr int kPieces = 1;
  static constexpr bool kRowScales = true;
  static constexpr bool kColumnScales = !kSquares;
  static constexpr int kMostOfSixteen = kOutputs;
  static constexpr bool kSixteenAlone = kRows <= few_rows::kSixteenRows;
  static constexpr bool kPairsSilus = false;
  static constexpr int kEarlyOutputs = 32;

  __device__ E4m3Diagonal(const Args& args, const Rings& rings)
      : args_(args),
        rings_(rings),
        stage_{args.stages},
        chunk_{args.chunks},
        warp_(__shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0)),
        lane_(static_cast<int>(threadIdx.x) % 32),
        parts_((args.rows + 7) / 8 * kEights),
        hand_(rings.behind(args) + lane_ * kPairBytes) {}

  __device__ std::uint32_t multiply_for_all(int unit) {
    float2 sums[kShare];
    add_tiles(sums, unit);
    const std::uint32_t shared = hand_ - lane_ * kPairBytes + turned_;
    put_shares(sums);
    turn();
    return shared;
  }

  __device__ void multiply(float (&out)[1][kOutputs / 2], int unit) {
    const Columns columns(args_, unit);
    float2 of_columns[kSquares ? 1 : kEights];
    if constexpr (!kSquares) {
      columns.visit_columns([&](int i, float2 scales) { of_columns[i] = scales; });
    }
    float2 sums[kShare];
    add_tiles(sums, unit);
    collect(out[0], sums);
    if constexpr (!kSquares) {
#pragma unroll
      for (int i = 0; i < kEights; ++i) Columns::apply(out[0] + 4 * i, of_columns[i]);
    }
  }

 private:
  using Tiles = DiagonalTiles<kRows>;
  static constexpr int kBatch = Tiles::batch(kOutputs);
  static constexpr int kTiles = Tiles::kTiles;
  static constexpr int kRowEights = Tiles::kRowEights;
  static constexpr int kEights = kOutputs / 8;
  static constexpr int kParts = kRowEights * kEights;  // eight rows x eight outputs, of a unit
  static constexpr int kShare = (kParts + 3) / 4;      // of them that a warp adds, at most
  static constexpr int kPairBytes = sizeof(float2);
  static constexpr std::uint32_t kHandBytes = Tiles::hand_bytes(kOutputs);
  static_assert(kOutputs <= Tiles::most_outputs() && kBatch % kTiles == 0);

  /// The next unit's sums of this warp's parts, before scales of whole rows of weights.
  __device__ void add_tiles(float2 (&sums)[kShare], int unit) {
    const Columns columns(args_, unit);
    const float* places[kShare];  // of a part's next scales of weights
#pragma unroll
    for (int j = 0; j < kShare; ++j) {
      sums[j] = make_float2(0, 0);
      if constexpr (kSquares) places[j] = columns.of_squares(part_of(j) % kEights);
    }
    Scales next[kShare];
    fetch(next, places, 0);
    begin(next, 0);
#pragma unroll 1
    for (int tile = 0; tile < args_.tiles; tile += kBatch) {
      Scales scales[kShare];
#pragma unroll
      for (int j = 0; j < kShare; ++j) scales[j] = next[j];
      fetch(next, places, tile + kBatch);
      hand_over(scales[kShare - 1]);
      if (tile + kBatch < args_.tiles) begin(next, tile + kBatch);
      meet();
#pragma unroll
      for (int j = 0; j < kShare; ++j) {
        if (part_of(j) < parts_) add(sums[j], scales[j], part_of(j), args_.tiles - tile);
      }
      turn();
    }
  }

  /// Of a part and the tiles of a batch.
  struct Scales {
    float rows[kBatch];
    float weights[kSquares ? kBatch : 1];
  };

  /// The number of a warp's part j. Warps that hold few sums, the last ones, add first.
  __device__ int part_of(int j) const {
    return (warp_ + 2) % 4 + 4 * j;
  }

  /// Reads those of a batch's weights from memory, a batch ahead.
  __device__ void fetch(Scales (&scales)[kShare], const float* (&places)[kShare], int tile) const {
    if constexpr (kSquares) {
      if (tile >= args_.tiles) return;
#pragma unroll
      for (int j = 0; j < kShare; ++j) {
        if (part_of(j) >= parts_) continue;
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          if (i == 0 || tile + i < args_.tiles) scales[j].weights[i] = __ldg(places[j]);
          places[j] += args_.weight_eights;
        }
      }
    }
  }

  /// Begins the products of a batch, and reads the scales of its rows.
  __device__ void begin(Scales (&scales)[kShare], int tile) {
    if (stage_left_ == 0) {
      if (chunk_left_ == 0) {
        wait_barrier(rings_.x.full + 8 * chunk_.slot, chunk_.parity);
        x_ = rings_.x.slot(chunk_.slot);
        scales_ = rings_.scales_of(chunk_.slot) + lane_ / 4 * sizeof(float);
        chunk_left_ = args_.chunk_tiles;
      }
      wait_barrier(rings_.weights.full + 8 * stage_.slot, stage_.parity);
      weights_ = rings_.weights.slot(stage_.slot);
      stage_left_ = args_.stage_tiles;
    }
    begin_products();
#pragma unroll
    for (int i = 0; i < kBatch / kTiles; ++i) {
      const std::uint32_t x_tiles = tile_descriptor(x_);
      const std::uint32_t weight_tiles = tile_descriptor(weights_);
#pragma unroll
      for (int step = 0; step < kTileRowBytes / 32; ++step) {
        multiply_add<Operand::kE4M3>(held_[i], x_tiles + step * 2, weight_tiles + step * 2,
                                     step > 0);
      }
      x_ += kTiles * kRows * kTileRowBytes;
      weights_ += kTiles * kOutputs * kTileRowBytes;
    }
    commit_products();
#pragma unroll
    for (int j = 0; j < kShare; ++j) {
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const int row = i * kRows + min(part_of(j) / kEights, kRowEights - 1) * 8;
        scales[j].rows[i] = load_scale(scales_ + row * sizeof(float));
      }
    }
    scales_ += kBatch * kRows * sizeof(float);
    stage_left_ -= kBatch;
    chunk_left_ -= kBatch;
    if (tile + kBatch >= args_.tiles) stage_left_ = chunk_left_ = 0;
  }

  /// Puts the tiles' sums of a batch, once they are done, where all warps read them. last: of what
  /// was loaded for it.
  __device__ void hand_over(const Scales& last) {
    wait_products<0>();
#pragma unroll
    for (auto& held : held_) take_sums(held);
    if (stage_left_ == 0) {
      __syncwarp();
      if (lane_ == 0) arrive(rings_.weights.free + 8 * stage_.slot);
      stage_.next();
      if (chunk_left_ == 0) {
        if (lane_ == 0) {
          arrive(once_loaded(rings_.x.free + 8 * chunk_.slot, last.rows[0], last.rows[kBatch - 1],
                             args_.rows));
        }
        chunk_.next();
      }
    }
#pragma unroll
    for (int warp = 0; warp < 4; ++warp) {  // sums have numbers that the compiler knows
      if (warp_ != warp) continue;
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int tile = (2 * warp + half) / kRowEights;
        const int row_eight = (2 * warp + half) % kRowEights;
        if (tile >= kTiles || row_eight * 8 >= args_.rows) continue;
#pragma unroll
        for (int i = 0; i < kBatch / kTiles; ++i) {
#pragma unroll
          for (int e = 0; e < kEights; ++e) {
            const int at = tile * (kOutputs / 2) + 4 * e + 2 * half;
            put((i * kTiles + tile) * kParts + row_eight * kEights + e,
                make_float2(held_[i][at], held_[i][at + 1]));
          }
        }
      }
    }
  }

  /// Adds a batch to the sums of a part; tiles behind the last of those left are not added.
  __device__ void add(float2& sums, const Scales& scales, int part, int left) const {
    float2 of_tiles[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) of_tiles[i] = get(i * kParts + part);
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      if (i >= left) continue;
      const float scale =
          kSquares ? __fmul_rn(scales.rows[i], scales.weights[kSquares ? i : 0]) : scales.rows[i];
      sums.x = __fmaf_rn(of_tiles[i].x, scale, sums.x);
      sums.y = __fmaf_rn(of_tiles[i].y, scale, sums.y);
    }
  }

  __device__ void put_shares(const float2 (&sums)[kShare]) const {
#pragma unroll
    for (int j = 0; j < kShare; ++j) {
      if (part_of(j) < parts_) put(part_of(j), sums[j]);
    }
  }
  /// Brings a unit's sums to the warps that have its rows.
  __device__ void collect(float (&out)[kOutputs / 2], const float2 (&sums)[kShare]) {
    put_shares(sums);
    meet();
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row_eight = 2 * warp_ + half;
      const bool there = row_eight * 8 < args_.rows;
#pragma unroll
      for (int e = 0; e < kEights; ++e) {
        const float2 pair = there ? get(row_eight * kEights + e) : make_float2(0, 0);
        out[4 * e + 2 * half] = pair.x;
        out[4 * e + 2 * half + 1] = pair.y;
      }
    }
    turn();
  }

  /// A lane's two sums of a part, in the half that is written now.
  __device__ void put(int part, float2 pair) const {
    few_rows::put_pair(hand_ + turned_ + part * few_rows::kEightBytes, pair);
  }
  __device__ float2 get(int part) const {
    return few_rows::get_pair(hand_ + turned_ + part * few_rows::kEightBytes);
  }
  /// To the other half: what is read in this one is written again behind the next meeting.
  __device__ void turn() {
    turned_ ^= kHandBytes;
  }

  const Args& args_;
  const Rings& rings_;
  Cursor stage_;
  Cursor chunk_;
  int warp_;
  int lane_;
  int parts_;           // that have rows
  std::uint32_t hand_;  // this lane's
  std::uint32_t turned_ = 0;
  float held_[kBatch / kTiles][kTiles * kOutputs / 2];  // products of all tiles with all outputs
  std::uint32_t x_ = 0;
  std::uint32_t scales_ = 0;  // of x, from the lane's row on
  std::uint32_t weights_ = 0;
  int stage_left_ = 0;  // tiles
  int chunk_left_ = 0;
};

#endif  // DENDRITE_SM90A

}  // namespace dendrite::cuda::e4m3
