#pragma once

#include "backend/cuda/base/mma.cuh"
#include "backend/cuda/base/numbers.cuh"

// Products of bf16 by tensor cores without shared memory: a thread loads 16 bytes of a row at a
// time, which are its values of two steps over k. Rows of both operands are read so, in the same
// order, so an output is a chain over k that depends on its own row alone.
namespace dendrite::cuda {

constexpr int kPieceTile = 16;   // rows of a weight
constexpr int kPieceValues = 8;  // that a thread loads at once
constexpr int kPieceStep = 4 * kPieceValues;

/// Weights, which nobody else of this pass reads but the blocks of other rows of the expert.
__device__ inline uint4 load_weight_values(const bf16* from) {
  uint4 v;
  asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "l"(from));
  return v;
}

/// Eight values of a row of the batch, as bf16.
__device__ inline uint4 load_values(const bf16* from) {
  return *reinterpret_cast<const uint4*>(from);
}
__device__ inline uint4 load_values(const float* from) {
  const float4 a = *reinterpret_cast<const float4*>(from);
  const float4 b = *reinterpret_cast<const float4*>(from + 4);
  return {pack_bf16(a.x, a.y), pack_bf16(a.z, a.w), pack_bf16(b.x, b.y), pack_bf16(b.z, b.w)};
}

/// Rows of the batch times two tiles of 16 rows of a matrix: sums[tile][rows / 8], as mma has them.
/// `weights`: rows lane / 4 and lane / 4 + 8 of each tile; `rows`: row lane / 4 of each eight.
template <int kRowTiles>
struct PieceSums {
  float at[2][kRowTiles][4] = {};

  template <typename T>
  __device__ void multiply(const bf16* const (&weights)[4], const T* const (&rows)[kRowTiles],
                           int ld) {
    const int begin = static_cast<int>(threadIdx.x) % 4 * kPieceValues;
#pragma unroll 4
    for (int k = 0; k < ld; k += kPieceStep) {
      const int piece = k + begin;
      const bool is_there = piece < ld;
      uint4 w[4];
      uint4 x[kRowTiles];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        w[i] = is_there ? load_weight_values(weights[i] + piece) : make_uint4(0, 0, 0, 0);
      }
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
        x[i] = is_there ? load_values(rows[i] + piece) : make_uint4(0, 0, 0, 0);
      }
#pragma unroll
      for (int tile = 0; tile < 2; ++tile) {
        const uint4& above = w[2 * tile];
        const uint4& below = w[2 * tile + 1];
        const std::uint32_t one[4] = {above.x, below.x, above.y, below.y};
        const std::uint32_t two[4] = {above.z, below.z, above.w, below.w};
#pragma unroll
        for (int i = 0; i < kRowTiles; ++i) {
          multiply_add(at[tile][i], one, x[i].x, x[i].y);
          multiply_add(at[tile][i], two, x[i].z, x[i].w);
        }
      }
    }
  }

  /// `column`: this thread's first of the tile, of so many that there are.
  __device__ void add_bias(int tile, const float* bias, int column, int columns) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float value = bias[min(column + 8 * half, columns - 1)];
#pragma unroll
      for (int i = 0; i < kRowTiles; ++i) {
        at[tile][i][2 * half] += value;
        at[tile][i][2 * half + 1] += value;
      }
    }
  }
};

}  // namespace dendrite::cuda
