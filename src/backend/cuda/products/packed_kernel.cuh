#pragma once

#include "backend/cuda/products/few_rows_epilogue.cuh"
#include "backend/cuda/products/packed_decode.cuh"
#include "backend/cuda/products/packed_stream.cuh"

// Products of up to 64 rows with packed weights, y = x W^T, in the one order of sums that products
// of bf16 weights have: k ascending in steps of 16, one accumulator an output. So the bits are
// those that the widened weight gives.
// Floor: the bytes of W over read bandwidth; a chain of k / 16 products that depend on each other;
// some four instructions a weight.
//
// A unit is kTiles x 8 outputs. A warp keeps a ring of tiles in shared memory that it fills by
// itself, the first of them before the kernel before is done, and decodes them in registers. One
// more warp brings x, in pieces that all warps of a block read alike.
namespace dendrite::cuda::packed {

/// What becomes of a warp's sums: a thread has, of every 16 rows, two columns of `row` and row + 8.
template <int kBlocks>
class Sink {
 public:
  __device__ Sink(const Arguments& args, int lane) : args_(args), lane_(lane) {}

  /// What is added to, read before anything is stored.
  template <int kTiles>
  __device__ void put(int unit, const float (&sums)[kTiles][kBlocks][4]) const {
    float2 old[kTiles][kBlocks][2];
#pragma unroll
    for (int i = 0; i < 2 * kTiles * kBlocks; ++i) {
      const int tile = i / (2 * kBlocks);
      const int block = i / 2 % kBlocks;
      old[tile][block][i % 2] =
          few_rows::load_old(args_, row_of(block) + i % 2 * 8, column_of<kTiles>(unit, tile));
    }
#pragma unroll
    for (int i = 0; i < 2 * kTiles * kBlocks; ++i) {
      const int tile = i / (2 * kBlocks);
      const int block = i / 2 % kBlocks;
      const float* const two = sums[tile][block] + i % 2 * 2;
      few_rows::store_pair(args_, row_of(block) + i % 2 * 8, column_of<kTiles>(unit, tile), two[0],
                           two[1], old[tile][block][i % 2]);
    }
  }

  /// Gates and ups, or halves of heads.
  __device__ void put_pairs(int unit, float (&sums)[2][kBlocks][4]) const {
    if (args_.epilogue == Epilogue::kRope) return put_heads(unit, sums);
    const int column = unit * 8 + lane_ % 4 * 2;
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        few_rows::store_silu(args_, row_of(block) + i / 2 * 8, column + i % 2, sums[0][block][i],
                             sums[1][block][i]);
      }
    }
  }

 private:
  __device__ int row_of(int block) const {
    return block * 16 + lane_ / 4;
  }
  template <int kTiles>
  __device__ int column_of(int unit, int tile) const {
    return (unit * kTiles + tile) * 8 + lane_ % 4 * 2;
  }

  __device__ void put_heads(int unit, float (&sums)[2][kBlocks][4]) const {
    const few_rows::FirstPair first(args_, unit);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const int row = row_of(block);
      const few_rows::HeadSink sink(args_, row, row + 8);
      float2 angles[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const HeadPair pair{first.head, first.pair + lane_ % 4 * 2 + i % 2};
        angles[i] = sink.load_angle(pair, i / 2);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const HeadPair pair{first.head, first.pair + lane_ % 4 * 2 + i % 2};
        sink.put(pair, i / 2, angles[i], sums[0][block][i], sums[1][block][i]);
      }
      for (int e = 0; e < sink.extra_count(unit); ++e) {
        const ExtraStore extra = args_.rope.extra_stores[e];
        if (extra.row != row && extra.row != row + 8) continue;
        const bool second = extra.row != row;
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const HeadPair pair{first.head, first.pair + lane_ % 4 * 2 + i};
          sink.put_again(pair, extra.slot, second ? sums[0][block][2 + i] : sums[0][block][i],
                         second ? sums[1][block][2 + i] : sums[1][block][i]);
        }
      }
    }
  }

  const Arguments& args_;
  int lane_;
};

/// Where a lane finds x in a piece: a row, and which 16 bytes of it in each step of a tile.
class XLane {
 public:
  __device__ explicit XLane(int lane) : row_(lane % 16 * few_rows::kTileRowBytes) {
#pragma unroll
    for (int step = 0; step < 4; ++step) columns_[step] = (2 * step + lane / 16 ^ lane % 8) * 16;
  }
  /// kBlocks: of the piece; step: of 16 columns, a constant.
  template <int kBlocks>
  __device__ std::uint32_t at(std::uint32_t piece, int block, int step) const {
    constexpr int kBlockBytes = 16 * few_rows::kTileRowBytes;
    return piece + row_ + columns_[step % 4] + (step / 4 * kBlocks + block) * kBlockBytes;
  }

 private:
  std::uint32_t row_;
  std::uint32_t columns_[4];
};

/// x of a step, blocks of 16 rows as left operands.
template <int kBlocks>
struct XStep {
  std::uint32_t of[kBlocks][4];

  __device__ XStep(const XLane& x, std::uint32_t piece, int step) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      load_matrices(of[block], x.at<kBlocks>(piece, block, step));
    }
  }
};

/// Tiles of each of kTiles rows of eight, as bf16.
template <class Q, int kTiles>
class DecodedTiles {
 public:
  static constexpr int kSteps = PackedLayout::kColumns / 16;

  __device__ void load(const std::uint8_t* data, int lane, std::uint32_t less) {
    first_ = LaneTile<Q>(data, lane, less);
    if constexpr (kTiles == 2) second_ = LaneTile<Q>(data + Q::kTileBytes, lane, less);
  }
  __device__ void decode() {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) decode(step);
  }
  /// sums += x W^T over the tile's columns. first: x of the first step. kDecoded: all of it is;
  /// else step after step between products, which takes fewer registers.
  template <bool kDecoded, int kBlocks>
  __device__ void multiply(const XStep<kBlocks>& first, std::uint32_t piece, const XLane& x,
                           float (&sums)[kTiles][kBlocks][4]) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      if constexpr (!kDecoded) decode(step);
      const XStep<kBlocks> here = step == 0 ? first : XStep<kBlocks>(x, piece, step);
#pragma unroll
      for (int block = 0; block < kBlocks; ++block) {
#pragma unroll
        for (int t = 0; t < kTiles; ++t) {
          multiply_add(sums[t][block], here.of[block], steps_[t][step].x, steps_[t][step].y);
        }
      }
    }
  }

 private:
  __device__ void decode(int step) {
    steps_[0][step] = first_.step(step);
    if constexpr (kTiles == 2) steps_[1][step] = second_.step(step);
  }

  LaneTile<Q> first_;
  LaneTile<Q> second_;
  uint2 steps_[kTiles][kSteps];
};

/// Whether a tile is decoded before its turn; else, where sums leave no registers for it, between
/// its products, and teams are of one warp.
__host__ __device__ constexpr bool decodes_early(int tiles, int blocks) {
  return tiles * blocks < 8;
}

/// kBlocks: of 16 rows of x.
template <class Q, int kTiles, int kBlocks>
__global__ void __launch_bounds__((kMostWarps + 1) * 32, 1)
    packed_kernel(const __grid_constant__ CUtensorMap x, const __grid_constant__ Arguments args) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(1024) std::uint8_t memory[];
  constexpr bool kEarly = decodes_early(kTiles, kBlocks);
  using Stream = TileStream<Q, kTiles, 1, !kEarly>;
  const Places places(memory, args, args.slots * Stream::kSlotBytes);
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  let_next_begin();
  if (warp == args.warps) {
    bring_x<1>(args, x, places, lane);
    return;
  }
  const Share<1, !kEarly> share(args, warp);
  Stream stream(args, places, share, warp);
  Relay<kTiles * kBlocks * 4, 1, !kEarly> relay(places, share, warp, lane);
  stream.begin(lane);
  __syncthreads();
  wait_for_earlier();

  const Sink<kBlocks> sink(args, lane);
  const XLane x_lane(lane);
  const std::uint32_t barriers = places.full(warp, 0);
  const std::uint8_t* const ring = memory + places.ring(warp, args.slots * Stream::kSlotBytes);
  SlotCursor slot{args.slots};
  SlotCursor piece{args.pieces};
  piece.next(share.member);
  float sums[kTiles][kBlocks][4];
  const auto put = [&](int unit) {
    if constexpr (kTiles == 2) {
      if (args.pairs) return sink.put_pairs(unit, sums);
    }
    sink.put(unit, sums);
  };
  DecodedTiles<Q, kTiles> weights;
  Way way(share);
  const auto load = [&] {
    if (way.unit >= args.units) return;
    wait_barrier(barriers + 8 * slot.slot, slot.parity);
    weights.load(ring + slot.slot * Stream::kSlotBytes, lane, args.less);
    if constexpr (kEarly) weights.decode();
  };
  const auto refill = [&] {  // when all have read what load() found
    __syncwarp();
    stream.fetch();
    slot.next();
  };
  load();
#pragma unroll 1
  while (true) {
    if constexpr (kEarly) refill();
    const int unit = way.unit;
    const bool whole = way.tile + 1 == args.tiles_k;
    wait_barrier(places.x_full(piece.slot), piece.parity);
    const std::uint32_t x_piece = places.base + places.x(piece.slot);
    const XStep<kBlocks> first(x_lane, x_piece, 0);
    relay.take(&sums[0][0][0], way.tile == 0);
    if (unit < args.units) weights.template multiply<kEarly>(first, x_piece, x_lane, sums);
    relay.pass(&sums[0][0][0], whole, lane);
    if constexpr (!kEarly) refill();
    __syncwarp();
    if (lane == 0) arrive(places.x_free(piece.slot));
    piece.next(share.team);
    if (whole && unit < args.units) put(unit);
    if (way.next(share, args.tiles_k) && way.rounds <= 0) break;
    load();  // here, so that it is decoded before the turn
  }
#endif
}

}  // namespace dendrite::cuda::packed
