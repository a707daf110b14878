#pragma once

#include "backend/cuda/base/launch.cuh"
#include "backend/cuda/products/few_rows_epilogue.cuh"
#include "backend/cuda/products/few_rows_streams.cuh"

// What becomes of the sums of at most sixteen rows. One warp has all of them, and with code for
// many rows, two hundred to a thousand instructions a unit, it took 0.5 to 2.6 us of an H200 before
// and behind its sums. Here they go to shared memory, and each thread of the warpgroup stores two
// neighbours of a row. What it needs beside is read before.
namespace dendrite::cuda::few_rows {

#ifdef DENDRITE_SM90A

__device__ inline void put_pair(std::uint32_t shared, float2 pair) {
  asm volatile("st.shared.v2.f32 [%0], {%1, %2};" ::"r"(shared), "f"(pair.x), "f"(pair.y)
               : "memory");
}
__device__ inline float2 get_pair(std::uint32_t shared) {
  float2 pair;
  asm volatile("ld.shared.v2.f32 {%0, %1}, [%2];"
               : "=f"(pair.x), "=f"(pair.y)
               : "r"(shared)
               : "memory");
  return pair;
}
/// Until all warps of a block's warpgroup are here.
__device__ inline void meet(unsigned group = 0) {
  asm volatile("bar.sync %0, %1;" ::"r"(1 + group), "n"(kMultipliers * 32) : "memory");
}
/// Where a pair of columns lies: `pair` of a unit of so many outputs, of a row.
template <int kOutputs>
__device__ inline std::uint32_t place_of_pair(int row, int pair) {
  return (row / 8 * (kOutputs / 8) + pair / 4) * kEightBytes +
         (row % 8 * 4 + pair % 4) * sizeof(float2);
}

/// The sums there, times their columns' scales, where Chain has such.
template <class Chain>
__device__ inline float2 take_pair(std::uint32_t shared, float2 scales) {
  float2 pair = get_pair(shared);
  if constexpr (Chain::kColumnScales) {
    pair.x *= scales.x;
    pair.y *= scales.y;
  }
  return pair;
}

/// Two neighbouring outputs of a row; of SiLU's two gates and their ups.
template <class Chain>
class OutputPair {
 public:
  using Args = typename Chain::Args;

  static __device__ int count(const Args& args) {
    return args.rows * (args.epilogue == Epilogue::kSiluMul ? kOutputs / 4 : kOutputs / 2);
  }

  __device__ OutputPair(const Args& args, int unit, int number) {
    const bool silu = args.epilogue == Epilogue::kSiluMul;
    const int of_row = silu ? kOutputs / 4 : kOutputs / 2;
    row_ = number / of_row;
    const int pair = number - row_ * of_row;
    column_ = unit * 2 * of_row + 2 * pair;
    shared_ = place_of_pair<kOutputs>(row_, pair);
    if constexpr (Chain::kColumnScales) {
      using Columns = typename Chain::Columns;
      scales_ = Columns::of_rows(args, column_, column_ + 1);
      if (silu) of_ups_ = Columns::of_rows(args, args.ffn + column_, args.ffn + column_ + 1);
    }
  }
  /// What earlier kernels wrote.
  __device__ void load(const Args& args) { old_ = load_old(args, row_, column_); }

  __device__ void store(const Args& args, std::uint32_t sums) const {
    const float2 pair = take_pair<Chain>(sums + shared_, scales_);
    if (args.epilogue != Epilogue::kSiluMul) {
      store_pair(args, row_, column_, pair.x, pair.y, old_);
      return;
    }
    const float2 up = take_pair<Chain>(sums + shared_ + kOutputs / 16 * kEightBytes, of_ups_);
    store_narrow<Chain::kPairsSilus>(args, row_, column_, silu_of(args, column_, pair.x, up.x),
                                     silu_of(args, column_ + 1, pair.y, up.y));
  }

 private:
  static constexpr int kOutputs = Chain::kPiece * Chain::kPieces;

  int row_;
  int column_;
  std::uint32_t shared_;
  float2 scales_ = {};
  float2 of_ups_ = {};
  float2 old_ = {};
};

/// kRope: a pair of a head, of a row.
template <class Chain>
class RotatedPair {
 public:
  using Args = typename Chain::Args;

  static __device__ int count(const Args& args) { return args.rows * (kOutputs / 2); }

  __device__ RotatedPair(const Args& args, int unit, int number) {
    row_ = number / (kOutputs / 2);
    const int of_unit = number % (kOutputs / 2);
    shared_ = place_of_pair<kOutputs>(row_, of_unit);
    const FirstPair first(args, unit);
    const int eights = args.unit_pairs / 4;  // of a head
    pair_ = {first.head + of_unit / 4 / eights,
             first.pair + of_unit / 4 % eights * 4 + of_unit % 4};
    if constexpr (Chain::kColumnScales) {
      const int column = pair_.column(args.rope);
      scales_ = Chain::Columns::of_rows(args, column, column + HeadPair::half(args.rope));
    }
  }
  __device__ void load(const Args& args) {
    angle_ = pair_.load_angle(args.rope, row_);
    slot_ = args.rope.slots[row_];
    extra_ = ExtraStores(args.rope, row_);
  }

  __device__ void store(const Args& args, std::uint32_t sums) const {
    if (!pair_.exists(args.rope)) return;
    float2 pair = take_pair<Chain>(sums + shared_, scales_);
    pair_.put(args.rope, args.bias, angle_, slot_, target_of(args, row_, 0), pair.x, pair.y);
    if (pair_.is_query(args.rope)) return;
    extra_.each(args.rope,
                [&](std::int64_t slot) { pair_.store(args.rope, slot, pair.x, pair.y); });
  }

 private:
  static constexpr int kOutputs = Chain::kPiece * Chain::kPieces;

  int row_;
  std::uint32_t shared_;
  HeadPair pair_;
  float2 scales_ = {};
  float2 angle_ = {};
  std::int64_t slot_ = -1;
  ExtraStores extra_;
};

/// Multiplies a block's units, kUnits at once by a warpgroup each, and stores what comes out.
/// Chain: as of Multiplier, and
///   kSixteenAlone: whether rows are never more
///   kMostOfSixteen: of units of no more outputs, as others have no registers left for it
///   kColumnScales: whether outputs have scales, which Columns::of_rows() reads
///   std::uint32_t multiply_for_all(unit): multiplies the next unit, without those; where its sums
///   are in shared memory, when all warps of the warpgroup have met
template <class Chain, class Pair, int kUnits>
__device__ inline void run_sixteen_rows(const typename Chain::Args& args, Chain& chain) {
  constexpr int kThreads = kMultipliers * 32;
  const int thread = static_cast<int>(threadIdx.x) % kThreads;
  const int group = kUnits > 1 ? static_cast<int>(threadIdx.x) / kThreads : 0;
  const int count = Pair::count(args);
  for (int at_once = static_cast<int>(blockIdx.x); at_once < args.units;
       at_once += static_cast<int>(gridDim.x)) {
    const int unit = at_once * kUnits + group;
    Pair next(args, unit, thread);
    wait_for_earlier();
    if (thread < count) next.load(args);
    const std::uint32_t sums = chain.multiply_for_all(unit);
    meet(group);
#pragma unroll 1
    for (int number = thread; number < count; number += kThreads) {
      const Pair pair = next;
      if (number + kThreads < count) {
        next = Pair(args, unit, number + kThreads);
        next.load(args);
      }
      pair.store(args, sums);
    }
    meet(group);  // before the next unit's come to their place
  }
}

/// The sums of a warpgroup's first sixteen rows to shared memory.
template <int kPieces, int kCount>
__device__ inline void hand_to_all(const Arguments& args, std::uint32_t shared,
                                   const float (&sums)[kPieces][kCount]) {
  const unsigned lane = threadIdx.x % (kMultipliers * 32);
  if (lane >= 32) return;
  shared += lane * sizeof(float2);
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    if (half * 8 >= args.rows) break;
#pragma unroll
    for (int piece = 0; piece < kPieces; ++piece) {
#pragma unroll
      for (int i = 0; i < kCount; i += 4) {
        const float* const two = sums[piece] + i + 2 * half;
        put_pair(shared, make_float2(two[0], two[1]));
        shared += kEightBytes;
      }
    }
  }
}

#endif  // DENDRITE_SM90A

}  // namespace dendrite::cuda::few_rows
