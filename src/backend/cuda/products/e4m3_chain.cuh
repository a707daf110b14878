#pragma once

#include "backend/cuda/base/wgmma.cuh"
#include "backend/cuda/products/e4m3_rows.h"
#include "backend/cuda/products/e4m3_scales.cuh"
#include "backend/cuda/products/few_rows_multiplier.cuh"

// Sums of products in FP8. Those of a tile, 128 columns, are made by tensor cores from nothing;
// they are added to the sums so far times the scales of the row and, where weights have some for
// 128 columns, of the weight. Scales of whole rows of weights come last.
namespace dendrite::cuda::e4m3 {

static_assert(few_rows::kTileRowBytes == kE4m3Group);

/// Tiles whose products are begun at once: each takes registers for sums of its own.
constexpr int batch_of(int outputs) {
  return outputs <= 16 ? 4 : outputs <= 32 ? 2 : 1;
}

#ifdef DENDRITE_SM90A

using few_rows::Cursor;
using few_rows::kTileRowBytes;
using few_rows::PairWalk;
using few_rows::Rings;

/// See few_rows::Multiplier. kSquares: weights have a scale for 8 rows x 128 columns. Requires
/// stages of whole batches.
template <int kOutputs, bool kSquares, bool kHeads, int kGroups, int kUnits = 1>
class E4m3Chain {
 public:
  using Args = Arguments;
  using Columns = UnitScales<kOutputs, kHeads>;
  static constexpr int kPiece = kOutputs;
  static constexpr int kPieces = 1;
  static constexpr bool kRowScales = true;
  static constexpr bool kColumnScales = !kSquares;
  static constexpr int kMostOfSixteen = kSquares && kUnits > 1 ? 112 : 144;
  static constexpr bool kSixteenAlone = false;
  static constexpr bool kPairsSilus = false;
  static constexpr int kEarlyOutputs = 32;

  __device__ E4m3Chain(const Args& args, const Rings& rings)
      : args_(args),
        rings_(rings),
        stage_{args.stages},
        chunk_{args.chunks},
        first_x_(kGroups > 1 ? few_rows::first_x_of_group() : 0),
        row_places_(row_of_band(), args.tile_rows),
        first_weight_(kUnits > 1 ? few_rows::warpgroup() * args.stage_tiles * kTileBytes : 0) {}

  __device__ std::uint32_t multiply_for_all(int unit) {
    float sums[1][kOutputs / 2];
    add_tiles(sums[0], unit);
    const std::uint32_t group = kUnits > 1 ? few_rows::warpgroup() : 0;
    const std::uint32_t shared = rings_.behind(args_) + group * kSixteenBytes;
    few_rows::hand_to_all(args_, shared, sums);
    return shared;
  }

  __device__ void multiply(float (&out)[1][kOutputs / 2], int unit) {
    float(&sums)[kOutputs / 2] = out[0];
    const Columns unit_scales(args_, unit);
    float2 of_columns[kEarlyScales ? kEights : 1];
    if constexpr (kEarlyScales) {
      unit_scales.visit_columns([&](int i, float2 scales) { of_columns[i] = scales; });
    }
    add_tiles(sums, unit);
    if constexpr (kEarlyScales) {
#pragma unroll
      for (int i = 0; i < kEights; ++i) Columns::apply(sums + 4 * i, of_columns[i]);
    } else if constexpr (!kSquares) {
      unit_scales.visit_columns(
          [&](int i, float2 scales) { Columns::apply(sums + 4 * i, scales); });
    }
  }

 private:
  static constexpr int kBatch = batch_of(kOutputs);
  static constexpr int kTileBytes = kOutputs * kTileRowBytes;
  // Registers for a batch that runs while the one before is added: where a block has a
  // multiprocessor for itself, or its units are small.
  static constexpr bool kAhead = kOutputs <= (kGroups * kUnits > 1 ? 128 : 64);
  static constexpr int kEights = kOutputs / 8;
  static constexpr int kSixteenBytes = few_rows::sixteen_rows_bytes(kOutputs);
  static constexpr bool kEarlyScales = !kSquares && kOutputs <= 64;

  /// The next unit's sums, before scales of whole rows of weights.
  __device__ void add_tiles(float (&sums)[kOutputs / 2], int unit) {
#pragma unroll
    for (float& sum : sums) sum = 0;
    Batch even;
    fetch(even.scales, 0, unit);
    begin(even, 0);
    if constexpr (kAhead) {
      Batch odd;
      fetch(odd.scales, kBatch, unit);
#pragma unroll 1
      for (int tile = kBatch;; tile += 2 * kBatch) {
        if (tile >= args_.tiles) {
          end<0>(sums, even, tile - kBatch, unit);
          break;
        }
        begin(odd, tile);
        end<1>(sums, even, tile - kBatch, unit);
        if (tile + kBatch >= args_.tiles) {
          end<0>(sums, odd, tile, unit);
          break;
        }
        begin(even, tile + kBatch);
        end<1>(sums, odd, tile, unit);
      }
    } else {
#pragma unroll 1
      for (int tile = kBatch; tile < args_.tiles; tile += kBatch) {
        end<0>(sums, even, tile - kBatch, unit);
        begin(even, tile);
      }
      end<0>(sums, even, (args_.tiles - 1) / kBatch * kBatch, unit);
    }
  }

  /// Of a batch of tiles: of the thread's two rows, and of weights.
  struct Scales {
    float rows[2][kBatch] = {};
    float weights[kSquares ? kBatch : 1][kSquares ? kEights : 1];
  };

  /// Tiles whose products run, or are done.
  struct Batch {
    float sums[kBatch][kOutputs / 2];
    Scales scales;
    std::uint32_t stage;  // barriers of slots that are free behind it, or 0
    std::uint32_t chunk;
  };

  /// The first of the thread's two rows.
  static __device__ unsigned row_of_band() {
    return threadIdx.x / 32 % (kGroups * few_rows::kMultipliers) * 16 + threadIdx.x % 32 / 4;
  }

  /// Begins the products of a batch, and reads the scales of its rows.
  __device__ void begin(Batch& batch, int tile) {
    if (stage_left_ == 0) {
      if (chunk_left_ == 0) {
        wait_barrier(rings_.x.full + 8 * chunk_.slot, chunk_.parity);
        x_ = rings_.x.slot(chunk_.slot) + first_x_;
        scales_ = rings_.scales_of(chunk_.slot) + row_places_.first;
        chunk_left_ = args_.chunk_tiles;
      }
      wait_barrier(rings_.weights.full + 8 * stage_.slot, stage_.parity);
      weights_ = rings_.weights.slot(stage_.slot) + first_weight_;
      stage_left_ = args_.stage_tiles;
    }
    begin_products();
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const std::uint32_t x_tile = tile_descriptor(x_);
      const std::uint32_t weight_tile = tile_descriptor(weights_);
#pragma unroll
      for (int step = 0; step < kTileRowBytes / 32; ++step) {
        multiply_add<Operand::kE4M3>(batch.sums[i], x_tile + step * 2, weight_tile + step * 2,
                                     step > 0);
      }
      x_ += args_.tile_rows * kTileRowBytes;
      weights_ += kTileBytes;
    }
    commit_products();
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      batch.scales.rows[0][i] = load_scale(scales_);
      batch.scales.rows[1][i] = load_scale(scales_ + row_places_.to_second);
      scales_ += args_.tile_rows * sizeof(float);
    }
    stage_left_ -= kBatch;
    chunk_left_ -= kBatch;
    if (tile + kBatch >= args_.tiles) stage_left_ = chunk_left_ = 0;
    batch.stage = 0;
    batch.chunk = 0;
    if (stage_left_ == 0) {
      batch.stage = rings_.weights.free + 8 * stage_.slot;
      stage_.next();
      if (chunk_left_ == 0) {
        batch.chunk = rings_.x.free + 8 * chunk_.slot;
        chunk_.next();
      }
    }
  }

  /// Adds a batch's sums once all but kPending of the batches that were begun are done. Then reads
  /// the scales of weights of the batch that comes to its place.
  template <int kPending>
  __device__ void end(float (&sums)[kOutputs / 2], Batch& batch, int tile, int unit) const {
    wait_products<kPending>();
#pragma unroll
    for (int i = 0; i < kBatch; ++i) take_sums(batch.sums[i]);
    if (batch.stage != 0) {
      __syncwarp();
      const float(&rows)[2][kBatch] = batch.scales.rows;
      if (threadIdx.x % 32 == 0) arrive(batch.stage);
      if (batch.chunk != 0 && threadIdx.x % 32 == 0) {
        arrive(once_loaded(batch.chunk, rows[0][kBatch - 1], rows[1][kBatch - 1], args_.rows));
      }
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {  // tiles behind the last one are not added
      if (i == 0 || tile + i < args_.tiles) add(sums, batch.sums[i], batch.scales, i);
    }
    fetch(batch.scales, tile + (kAhead ? 2 : 1) * kBatch, unit);
  }

  /// Reads those of a batch's weights from memory.
  __device__ void fetch(Scales& scales, int tile, int unit) const {
    if constexpr (kSquares) {
      if (tile >= args_.tiles) return;
#pragma unroll
      for (int i = 0; i < kBatch; ++i) {
        const std::int64_t of_tile = min(tile + i, args_.tiles - 1);
#pragma unroll
        for (int j = 0; j < kEights; ++j) {
          scales.weights[i][j] =
              __ldg(Columns(args_, unit).of_squares(j) + of_tile * args_.weight_eights);
        }
      }
    }
  }

  static __device__ void add(float (&sums)[kOutputs / 2], const float (&of_tile)[kOutputs / 2],
                             const Scales& scales, int tile) {
    const float first = scales.rows[0][tile];
    const float second = scales.rows[1][tile];
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      const float weight = kSquares ? scales.weights[kSquares ? tile : 0][kSquares ? i : 0] : 1.0f;
      const float a = kSquares ? __fmul_rn(first, weight) : first;
      const float b = kSquares ? __fmul_rn(second, weight) : second;
      sums[4 * i] = __fmaf_rn(of_tile[4 * i], a, sums[4 * i]);
      sums[4 * i + 1] = __fmaf_rn(of_tile[4 * i + 1], a, sums[4 * i + 1]);
      sums[4 * i + 2] = __fmaf_rn(of_tile[4 * i + 2], b, sums[4 * i + 2]);
      sums[4 * i + 3] = __fmaf_rn(of_tile[4 * i + 3], b, sums[4 * i + 3]);
    }
  }

  const Args& args_;
  const Rings& rings_;
  Cursor stage_;
  Cursor chunk_;
  std::uint32_t first_x_;  // of the warpgroup's rows in a tile
  RowPlaces row_places_;
  std::uint32_t first_weight_;  // of its unit in a slot
  std::uint32_t x_ = 0;
  std::uint32_t scales_ = 0;
  std::uint32_t weights_ = 0;
  int stage_left_ = 0;  // tiles
  int chunk_left_ = 0;
};

#endif  // DENDRITE_SM90A

}  // namespace dendrite::cuda::e4m3
