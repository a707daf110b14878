#pragma once

#include <type_traits>

#include "backend/cuda/base/launch.cuh"
#include "backend/cuda/base/mma.cuh"
#include "backend/cuda/products/few_rows_epilogue.cuh"
#include "backend/cuda/products/few_rows_sixteen.cuh"
#include "backend/cuda/products/few_rows_streams.cuh"

// The warps that multiply in the kernels of few_rows_wgmma.cu and e4m3_products.cu.
namespace dendrite::cuda::few_rows {

#ifdef DENDRITE_SM90A

/// The number of the thread's warpgroup.
__device__ inline unsigned warpgroup() {
  return __shfl_sync(0xffffffffu, threadIdx.x / (kMultipliers * 32), 0);
}
/// Where the rows of the thread's warpgroup begin in a tile of x.
__device__ inline std::uint32_t first_x_of_group() {
  return warpgroup() * kGroupRows * kTileRowBytes;
}

/// Multiplies a block's units and stores what comes out. A thread's sums are, of every 8 outputs,
/// columns 2t and 2t + 1 of a row and of the row 8 behind it. Chain has what it is to multiply:
///   kPiece outputs are one instruction, kPieces of them a unit
///   kRowScales: whether x has scales
///   kPairsSilus: whether they are stored by twos, see store_narrow()
///   kEarlyOutputs: of a unit of no more, what is added to is read before it is multiplied
///   void multiply(float (&sums)[kPieces][kPiece / 2], int unit): the next unit of the rings
/// kGroups warpgroups have rows of a unit, or each of kUnits has one of them.
template <class Chain, bool kHeads, int kGroups, int kUnits>
class Multiplier {
 public:
  __device__ Multiplier(const typename Chain::Args& args, const Rings& rings)
      : args_(args),
        chain_(args, rings),
        lane_(static_cast<int>(threadIdx.x) % 32),
        first_row_(static_cast<int>(threadIdx.x) / 32 % (kGroups * kMultipliers) * 16 + lane_ / 4),
        unit_(kUnits > 1 ? static_cast<int>(warpgroup()) : 0) {
    static_assert(kGroups == 1 || kUnits == 1);
  }

  __device__ void run() {
    wait_for_earlier();
    if constexpr (kHeads) {
      run_heads();
    } else {
      run_outputs();
    }
  }

 private:
  static constexpr int kPiece = Chain::kPiece;
  static constexpr int kPieces = Chain::kPieces;
  static constexpr int kOutputs = kPiece * kPieces;
  static constexpr int kOfPiece = kPiece / 8;
  static constexpr int kEights = kOfPiece * kPieces;
  static constexpr bool kEarly = kOutputs <= Chain::kEarlyOutputs;
  static constexpr int kAtOnce = kEights < 16 ? kEights : 16;  // not early

  /// A thread's rows; what is not of its band is behind all.
  struct Rows {
    int first;
    int second;

    __device__ Rows(const Arguments& args, const Walk& walk, int local)
        : first(local < args.tile_rows ? walk.first_row() + local : args.rows),
          second(local + 8 < args.tile_rows ? walk.first_row() + local + 8 : args.rows) {}
  };

  __device__ void run_outputs() {
    for (Walk walk(args_); !walk.done(); walk.next()) {
      const int unit = walk.unit() * kUnits + unit_;
      const Rows rows(args_, walk, first_row_);
      float2 old[kEarly ? kEights : 1][2];
      if constexpr (kEarly) load_olds<kEights>(unit, rows, 0, old);
      float sums[kPieces][kPiece / 2];
      chain_.multiply(sums, unit);
      if (args_.epilogue == Epilogue::kSiluMul) {
        store_silus(unit, rows, sums);
        continue;
      }
      if constexpr (kEarly) {
        store_sums<kEights>(unit, rows, 0, sums, old);
      } else {
#pragma unroll
        for (int first = 0; first < kEights; first += kAtOnce) {
          float2 here[kAtOnce][2];
          load_olds<kAtOnce>(unit, rows, first, here);
          store_sums<kAtOnce>(unit, rows, first, sums, here);
        }
      }
    }
  }

  /// What some eights of a unit are added to. Read before any is stored, as for all that the
  /// compiler knows a store may be to what is read next.
  template <int kCount>
  __device__ void load_olds(int unit, const Rows& rows, int first, float2 (&old)[kCount][2]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      if (first + i >= kEights) break;
      const int column = column_of(unit, first + i);
      old[i][0] = load_old(args_, rows.first, column);
      old[i][1] = load_old(args_, rows.second, column);
    }
  }
  template <int kCount>
  __device__ void store_sums(int unit, const Rows& rows, int first,
                             const float (&sums)[kPieces][kPiece / 2],
                             const float2 (&old)[kCount][2]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) {
      const int eight = first + i;
      if (eight >= kEights) break;
      const int column = column_of(unit, eight);
      const float* four = sums[eight / kOfPiece] + eight % kOfPiece * 4;
      store_pair(args_, rows.first, column, four[0], four[1], old[i][0]);
      store_pair(args_, rows.second, column, four[2], four[3], old[i][1]);
    }
  }

  __device__ void run_heads() {
    for (Walk blocks(args_); !blocks.done(); blocks.next()) {
      const int unit = blocks.unit() * kUnits + unit_;
      const Rows rows(args_, blocks, first_row_);
      const HeadSink sink(args_, rows.first, rows.second);
      float2 angles[kEarly ? kEights : 1][2];
      if constexpr (kEarly) {
        PairWalk walk(args_, unit);
#pragma unroll
        for (int i = 0; i < kEights; ++i) {
          angles[i][0] = sink.load_angle(walk.pair(), 0);
          angles[i][1] = sink.load_angle(walk.pair(), 1);
          walk.next();
        }
      }
      float sums[kPieces][kPiece / 2];
      chain_.multiply(sums, unit);
      PairWalk walk(args_, unit);
#pragma unroll
      for (int i = 0; i < kEights; ++i) {
        float* four = sums[i / kOfPiece] + i % kOfPiece * 4;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
          sink.put(walk.pair(), r,
                   kEarly ? angles[kEarly ? i : 0][r] : sink.load_angle(walk.pair(), r),
                   four[2 * r], four[2 * r + 1]);
        }
        walk.next();
      }
#pragma unroll
      for (int r = 0; r < 2; ++r) {
        sink.each_extra(unit, r, [&](std::int64_t slot) { put_again(sink, unit, r, slot, sums); });
      }
    }
  }

  __device__ void put_again(const HeadSink& sink, int unit, int r, std::int64_t slot,
                            const float (&sums)[kPieces][kPiece / 2]) const {
    asm volatile("" : "+r"(unit));  // else all pairs of the unit are kept in registers
    PairWalk walk(args_, unit);
#pragma unroll
    for (int i = 0; i < kEights; ++i) {
      const float* two = sums[i / kOfPiece] + i % kOfPiece * 4 + 2 * r;
      sink.put_again(walk.pair(), slot, two[0], two[1]);
      walk.next();
    }
  }

  __device__ int column_of(int unit, int i) const {
    return unit * kOutputs + 8 * i + lane_ % 4 * 2;
  }

  /// All values before any is stored, as threads wait for what they compute one after the other.
  __device__ void store_silus(int unit, const Rows& rows,
                              float (&sums)[kPieces][kPiece / 2]) const {
    [[maybe_unused]] constexpr bool kPairs = Chain::kPairsSilus;  // not of halves that are odd
    if constexpr (kEights % 2 == 0) {
      constexpr int kUps = kEights / 2;
      if (args_.bias != nullptr) {
#pragma unroll
        for (int i = 0; i < kEights; ++i)
          add_biases(unit, i, sums[i / kOfPiece] + i % kOfPiece * 4);
      }
#pragma unroll
      for (int i = 0; i < kUps; ++i) {
        float* gates = sums[i / kOfPiece] + i % kOfPiece * 4;
        const float* ups = sums[(i + kUps) / kOfPiece] + (i + kUps) % kOfPiece * 4;
#pragma unroll
        for (int j = 0; j < 4; ++j) gates[j] = silu(gates[j]) * ups[j];
      }
#pragma unroll
      for (int i = 0; i < kUps; ++i) {
        const int column = column_of_silu(unit, i);
        const float* values = sums[i / kOfPiece] + i % kOfPiece * 4;
        store_narrow<kPairs>(args_, rows.first, column, values[0], values[1]);
        store_narrow<kPairs>(args_, rows.second, column, values[2], values[3]);
      }
    }
  }
  __device__ int column_of_silu(int unit, int i) const {
    return unit * (kOutputs / 2) + 8 * i + lane_ % 4 * 2;
  }
  /// To the thread's values of eight outputs of gates or ups.
  __device__ void add_biases(int unit, int i, float* four) const {
    constexpr int kUps = kEights / 2;
    const int column = column_of_silu(unit, i % kUps);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      if (column + j >= args_.outputs) continue;
      const float bias = args_.bias[(i < kUps ? 0 : args_.ffn) + column + j];
      four[j] += bias;
      four[j + 2] += bias;
    }
  }

  const typename Chain::Args& args_;
  Chain chain_;
  int lane_;
  int first_row_;  // of a band
  int unit_;       // of those at once
};

/// A block of threads_of(kGroups * kUnits) threads, so many warpgroups of which multiply; where
/// they are two, with kRegisters a thread.
template <class Chain, bool kHeads, int kGroups, int kUnits = 1, int kRegisters = 240>
__device__ inline void run_block(const CUtensorMap& weight, const CUtensorMap& x,
                                 const typename Chain::Args& args) {
  extern __shared__ __align__(1024) std::uint8_t memory[];
  constexpr int kOutputs = Chain::kPiece * Chain::kPieces;
  constexpr int kWarps = kGroups * kUnits * kMultipliers;
  static_assert(Chain::kRowScales || !Chain::kColumnScales);
  const Rings rings(args, shared_address(memory), kUnits * kOutputs, Chain::kRowScales);
  // The compiler keeps what follows from a lane's value in uniform registers, as products need it.
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  let_next_begin();
  WeightStream<kOutputs, kHeads, kUnits> stream(args, weight, rings.weights);
  if (warp == kWarps) {
    if (lane == 0) prefetch_map(weight);
    if (lane < args.stages) rings.weights.init(lane, kWarps);
    __syncwarp();
    if (lane == 0) stream.begin();
  } else if (warp == kWarps + 1) {
    if (lane == 0) prefetch_map(x);
    if (lane < args.chunks) rings.x.init(lane, kWarps);
  }
  __syncthreads();
  if (warp < kWarps) {
    if constexpr (kGroups * kUnits > 1) take_registers<kRegisters>();
    if constexpr (kGroups == 1 && kOutputs <= Chain::kMostOfSixteen) {
      if (Chain::kSixteenAlone || args.rows <= kSixteenRows) {
        using Pair = std::conditional_t<kHeads, RotatedPair<Chain>, OutputPair<Chain>>;
        Chain chain(args, rings);
        run_sixteen_rows<Chain, Pair, kUnits>(args, chain);
        return;
      }
    }
    if constexpr (!Chain::kSixteenAlone) {
      Multiplier<Chain, kHeads, kGroups, kUnits>(args, rings).run();
    }
    return;
  }
  // Of 168 that each thread of three warpgroups has at first.
  if constexpr (kGroups * kUnits > 1) leave_registers<3 * 168 - 2 * kRegisters>();
  if (warp == kWarps) {
    if (lane == 0) stream.run();
  } else if (warp == kWarps + 1) {
    wait_for_earlier();
    if (lane == 0) stream_x<Chain::kRowScales>(args, x, rings);
  }
}

#endif  // DENDRITE_SM90A

}  // namespace dendrite::cuda::few_rows
