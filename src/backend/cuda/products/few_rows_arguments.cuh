#pragma once

#include <cstdint>

#include "backend/cuda/products/few_rows.h"
#include "backend/cuda/products/tensor_map.h"
#include "backend/cuda/stores/rope.h"

// What the parts of the kernel in few_rows_wgmma.cu share: what it is asked for, and how it is cut.
namespace dendrite::cuda::few_rows {

constexpr int kTileK = kTileColumns;
constexpr int kTileRowBytes = kTileK * 2;
constexpr int kMultipliers = 4;  // warps of a warpgroup,
constexpr int kGroupRows = 64;   // which multiplies so many rows
/// Of a block of so many warpgroups, beside which a warp brings weights and one x. Where there are
/// several these are of a warpgroup of their own, which leaves its registers to the others.
constexpr int threads_of(int groups) {
  return (groups * kMultipliers + (groups > 1 ? 4 : 2)) * 32;
}
constexpr int kMostSlots = 32;
constexpr int kBarrierBytes = 4 * kMostSlots * 8;
constexpr int kSwizzleBytes = 1024;  // slots begin on whole ones

/// Up to so many rows sums go to shared memory, see few_rows_sixteen.cuh:
constexpr int kSixteenRows = 16;
/// of eight outputs eight rows of four pairs, as a warp has them;
constexpr int kEightBytes = 32 * sizeof(float2);
/// those of a unit.
constexpr int sixteen_rows_bytes(int outputs) {
  return 2 * outputs / 8 * kEightBytes;
}

struct Arguments {
  int outputs;  // columns of the result
  int ffn;      // kSiluMul: the row of W where ups begin; else 0
  int rows;
  int tile_rows;    // of a band; whole eights
  int tiles;        // of 64 k
  int stage_tiles;  // of weights
  int stages;
  int under_way;    // copies of weights that wait at most while a ring is filled
  int chunk_tiles;  // of x; a multiple of stage_tiles
  int chunks;
  int units;              // counted by as many as a block works on at once
  int bands;              // of tile_rows rows; one, where rows are few
  const float* x_scales;  // [tiles, x_scale_rows], which go with x; or null
  int x_scale_rows;
  const float* bias;
  void* out;
  std::int64_t out_stride;
  bool paired;  // two f32 outputs may be loaded and stored at once
  Epilogue epilogue;
  // kRope: a unit is `unit_pairs` pairs of rows, a multiple of 4, of each of `unit_heads` heads.
  int unit_heads;
  int unit_pairs;
  RopeArguments rope;
};

/// What a block works on, one after the other: a unit, a band of rows. Blocks that run at once are
/// at the bands of few units, so that weights of many bands are read from memory about once.
class Walk {
 public:
  __device__ explicit Walk(const Arguments& args)
      : args_(args), item_(static_cast<int>(blockIdx.x)) {}

  __device__ bool done() const { return item_ >= args_.units * args_.bands; }
  __device__ int unit() const { return item_ / args_.bands; }
  __device__ int first_row() const { return item_ % args_.bands * args_.tile_rows; }
  __device__ void next() { item_ += static_cast<int>(gridDim.x); }

 private:
  const Arguments& args_;
  int item_;
};

/// kRope: where a unit begins.
struct FirstPair {
  int head;
  int pair;

  __device__ FirstPair(const Arguments& args, int unit) {
    const int units = static_cast<int>(args.rope.head_dim) / 2 / args.unit_pairs;  // of these heads
    head = unit / units * args.unit_heads;
    pair = unit % units * args.unit_pairs;
  }
};

}  // namespace dendrite::cuda::few_rows
