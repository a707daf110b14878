#pragma once

#include "backend/cuda/products/few_rows_epilogue.cuh"

// Scales of weights in E4M3, by the outputs of a unit.
namespace dendrite::cuda::e4m3 {

struct Arguments : few_rows::Arguments {
  const float* weight_scales;  // [rows of weight], or [tiles, weight_eights]
  const float* weight_blocks;  // [rows of weight / 128, tiles], if WeightScales has them
  int weight_rows;
  int weight_eights;  // rows of weight / 8
};

/// A scale of a row of x in the ring.
__device__ inline float load_scale(std::uint32_t shared) {
  float scale;
  asm volatile("ld.shared.f32 %0, [%1];" : "=f"(scale) : "r"(shared) : "memory");
  return scale;
}

/// Where scales of a thread's two rows, `row` and the one eight behind it, are in those of a tile:
/// of rows that it has not, the last one's.
struct RowPlaces {
  std::uint32_t first;
  std::uint32_t to_second;

  __device__ RowPlaces(unsigned row, unsigned tile_rows)
      : first(min(row, tile_rows - 1) * sizeof(float)),
        to_second(min(row + 8, tile_rows - 1) * sizeof(float) - first) {}
};

/// `barrier`, when a lane's two scales have been loaded: who has only begun to load from a slot may
/// not leave it yet. Those of the warp's other lanes, asked for before, have come with them. rows:
/// fewer than 2^30, which the compiler does not know.
__device__ inline std::uint32_t once_loaded(std::uint32_t barrier, float a, float b, int rows) {
  const std::uint32_t none = static_cast<std::uint32_t>(rows) >> 30;
  return barrier + ((__float_as_uint(a) | __float_as_uint(b)) & none);
}

/// kHeads: see Epilogue::kRope.
template <int kOutputs, bool kHeads>
class UnitScales {
 public:
  static constexpr int kEights = kOutputs / 8;

  __device__ UnitScales(const Arguments& args, int unit) : args_(args), unit_(unit) {}

  /// Those of squares of a tile, where it has `weight_eights`: of the unit's eight outputs number
  /// i. Not of heads.
  __device__ const float* of_squares(int i) const {
    return args_.weight_scales + min(first_row(i) / 8, args_.weight_eights - 1);
  }

  /// Where weights have blocks: those of all tiles, of the unit's eight outputs number i.
  __device__ const float* of_block(int i) const {
    return args_.weight_blocks +
           std::int64_t{min(first_row(i), args_.weight_rows - 1) / 128} * args_.tiles;
  }

  /// Of two rows of weights.
  static __device__ float2 of_rows(const Arguments& args, int first, int second) {
    return make_float2(scale_of(args, first), scale_of(args, second));
  }

  /// take(i, scales): of rows of weights, those of a thread's two outputs of each eight.
  template <class Take>
  __device__ void visit_columns(const Take& take) const {
    if constexpr (kHeads) {
      few_rows::PairWalk walk(args_, unit_);
      const int half = HeadPair::half(args_.rope);
#pragma unroll
      for (int i = 0; i < kEights; ++i) {
        const int column = walk.pair().column(args_.rope);
        take(i, of_rows(args_, column, column + half));
        walk.next();
      }
    } else {
      const int column = static_cast<int>(threadIdx.x) % 4 * 2;
#pragma unroll
      for (int i = 0; i < kEights; ++i) {
        const int first = first_row(i) + column;
        take(i, of_rows(args_, first, first + 1));
      }
    }
  }

  /// To a thread's sums of eight outputs: two of a row, and two of the row eight behind it.
  static __device__ void apply(float* four, float2 scales) {
    four[0] *= scales.x;
    four[1] *= scales.y;
    four[2] *= scales.x;
    four[3] *= scales.y;
  }

 private:
  /// The row of the weight that the unit's eight outputs number i begin with; not of heads.
  __device__ int first_row(int i) const {
    if (args_.ffn == 0) return unit_ * kOutputs + 8 * i;
    constexpr int kHalf = kOutputs / 2;  // gates, then ups
    return i < kEights / 2 ? unit_ * kHalf + 8 * i : args_.ffn + unit_ * kHalf + 8 * i - kHalf;
  }
  static __device__ float scale_of(const Arguments& args, int row) {
    return __ldg(args.weight_scales + min(row, args.weight_rows - 1));
  }

  const Arguments& args_;
  int unit_;
};

}  // namespace dendrite::cuda::e4m3
