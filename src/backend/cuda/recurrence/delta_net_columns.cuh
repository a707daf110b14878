#pragma once

#include <type_traits>

#include "backend/cuda/recurrence/delta_net_pieces.cuh"
#include "backend/cuda/recurrence/delta_net_shared.cuh"

// Columns of states that a thread block has, 16 of each value head of a key head, and how keys and
// queries meet them.
namespace dendrite::cuda {

inline constexpr int kTile = 8;   // rows of the state, or keys and queries, of a thread
inline constexpr int kLanes = 8;  // of a warp that have one row of the state when vectors meet it

/// Columns of a thread, if so many groups of threads share those of a block, which has kOfHead of
/// each head: fours, then two, as it comes out. Each of these runs is of one head.
template <int kHeads, int kOfHead, int kGroups>
struct Columns {
  static constexpr int kAll = kHeads * kOfHead;
  static constexpr int kCount = kAll / kGroups;
  static_assert(kCount % 2 == 0);
  static constexpr int kFours = kCount / 4;
  static constexpr int kRuns = (kCount + 3) / 4;

  static constexpr __device__ int width(int run) { return run < kFours ? 4 : 2; }
  static __device__ int at(int group, int i) {
    return i / 4 * 4 * kGroups + width(i / 4) * group + i % 4;
  }
  static __device__ int head(int group, int run) { return at(group, 4 * run) / kOfHead; }

  /// place(column): where it and those behind it lie.
  template <typename Place>
  static __device__ void load(const Place& place, int group, float (&to)[kCount]) {
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      const float* const from = place(at(group, 4 * r));
      if (width(r) == 4) {
        load_four(from, to + 4 * r);
      } else {
        const auto two = *reinterpret_cast<const float2*>(from);
        to[4 * r] = two.x;
        to[4 * r + 1] = two.y;
      }
    }
  }
  template <typename Place>
  static __device__ void store(const Place& place, int group, const float (&from)[kCount]) {
#pragma unroll
    for (int r = 0; r < kRuns; ++r) {
      float* const to = place(at(group, 4 * r));
      const float* const values = from + 4 * r;
      if (width(r) == 4) {
        *reinterpret_cast<float4*>(to) = make_float4(values[0], values[1], values[2], values[3]);
      } else {
        *reinterpret_cast<float2*>(to) = make_float2(values[0], values[1]);
      }
    }
  }
  /// Of a row in shared memory.
  static __device__ void load_row(const float* row, int group, float (&to)[kCount]) {
    load([row](int column) { return row + column; }, group, to);
  }
  static __device__ void store_row(float* row, int group, const float (&from)[kCount]) {
    store([row](int column) { return row + column; }, group, from);
  }

  /// Eight vectors from `first` on, which lie by channel, on the state: a warp's product of
  /// matrices. A thread has its columns and every fourth row of the state, and is left with the
  /// sums of two vectors, from own_row() on.
  static __device__ int own_row(int part) {
    return part % 2 * 4 + part / 2 * 2;
  }
  template <int kStride>
  static __device__ void meet(const float (&state)[kPieceKeyDim][kStride],
                              const float (&vectors)[kPieceKeyDim][kRows], int first, int part,
                              int group, float (&out)[kTile / 4][kCount]) {
    float sums[kTile][kCount] = {};
    float rows[2][kCount];  // those of the next row come while this one is used
    float vector[2][kTile];
    const auto load = [&](int r) {
      const int i = r * kParts + part;
      load_row(state[i], group, rows[r % 2]);
      load_four(&vectors[i][first], vector[r % 2]);
      load_four(&vectors[i][first + 4], vector[r % 2] + 4);
    };
    load(0);
#pragma unroll 8
    for (int r = 0; r < kPieceKeyDim / kParts; ++r) {
      if (r + 1 < kPieceKeyDim / kParts) load(r + 1);
#pragma unroll
      for (int t = 0; t < kTile; ++t) {
#pragma unroll
        for (int c = 0; c < kCount; ++c) {
          sums[t][c] = fmaf(rows[r % 2][c], vector[r % 2][t], sums[t][c]);
        }
      }
    }
    // By halves: a thread is left with two of the eight.
    float halves[kTile / 2][kCount];
    fold_half(sums, part % 2 != 0, kLanes, halves);
    fold_half(halves, part / 2 != 0, 2 * kLanes, out);
  }

 private:
  /// A thread and the one `width` lanes from it add what they have and keep a half each.
  template <int kHalf, int kOf>
  static __device__ void fold_half(const float (&from)[2 * kHalf][kOf], bool upper, int width,
                                   float (&to)[kHalf][kOf]) {
#pragma unroll
    for (int t = 0; t < kHalf; ++t) {
#pragma unroll
      for (int c = 0; c < kOf; ++c) {
        const float kept = upper ? from[kHalf + t][c] : from[t][c];
        const float given = upper ? from[t][c] : from[kHalf + t][c];
        to[t][c] = kept + __shfl_xor_sync(0xffffffffu, given, width);
      }
    }
  }
};

/// Calls fn(heads of a key head), which is a constant.
template <typename Fn>
auto with_heads(const DeltaNetArguments& args, const Fn& fn) {
  switch (args.value_heads / args.key_heads) {
    case 1:
      return fn(std::integral_constant<int, 1>{});
    case 2:
      return fn(std::integral_constant<int, 2>{});
    case 3:
      return fn(std::integral_constant<int, 3>{});
    default:
      return fn(std::integral_constant<int, kMostPieceHeads>{});
  }
}

}  // namespace dendrite::cuda
