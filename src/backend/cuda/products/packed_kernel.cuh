#pragma once

#include "backend/cuda/products/packed_codes.cuh"
#include "backend/cuda/products/packed_sink.cuh"
#include "backend/cuda/products/packed_stream.cuh"

// Products of up to 32 rows with packed weights, y = x W^T, in the order of packed_codes.cuh. More
// rows, where no kernel of packed_wide.cuh takes them, go band by band.
// Floor: the bytes of W over read bandwidth; some two instructions a weight of four bits.
//
// A unit is 16 outputs, the left operand of m16n8k16: eights of rows are the right one. A warp
// keeps a ring of tiles in shared memory that it fills by itself, the first of them before the
// kernel before is done. One more warp brings x, in pieces that all warps of a block read alike.
// Warps of a team have other tiles of the same unit, and add what they made of them one after the
// other.
namespace dendrite::cuda::packed {

/// Where a lane finds x for a tile, rows of which are right operands: eights of rows, of two steps
/// at a time.
template <int kEights>
class XLane {
 public:
  __device__ explicit XLane(int lane) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      at_[i] = lane % 8 * few_rows::kTileRowBytes + ((4 * i + lane / 8) ^ lane % 8) * 16;
    }
  }
  /// steps: the first of the two, an even constant.
  __device__ void load(std::uint32_t (&x)[4], std::uint32_t tile, int eight, int steps) const {
    constexpr int kEightBytes = 8 * few_rows::kTileRowBytes;
    load_matrices(x, tile + at_[steps / 2 % 2] + (steps / 4 * kEights + eight) * kEightBytes);
  }

 private:
  std::uint32_t at_[2];
};

/// The sums of a tile's products with eights of rows, as m16n8k16 has them.
template <class Q, int kEights>
class TileSums {
 public:
  static constexpr int kCount = 4 * kEights;

  /// data: a tile; the unit's other one begins `lower` bytes behind. x_tile: where x for them is
  __device__ void make(const std::uint8_t* data, int lower, const XLane<kEights>& x,
                       std::uint32_t x_tile, int lane, std::uint32_t less) {
    const LaneRow<Q> rows[] = {{data, lane, less}, {data + lower, lane, less}};
    const float minus[] = {rows[0].minus(), rows[1].minus()};
    LaneGroup<Q> groups[2];
#pragma unroll
    for (float& sum : sums_) sum = 0;
#pragma unroll
    for (int first = 0; first < kSteps; first += kPartSteps) {
      float part[kEights][4] = {};
#pragma unroll
      for (int step = first; step < first + kPartSteps; ++step) {
        uint2 pairs[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          if (step % kGroupSteps == 0) groups[i] = rows[i].group(step, minus[i]);
          pairs[i] = groups[i].pairs(LaneRow<Q>::load(data + i * lower, lane, step), step);
        }
        const std::uint32_t weights[] = {pairs[0].x, pairs[1].x, pairs[0].y, pairs[1].y};
#pragma unroll
        for (int eight = 0; eight < kEights; ++eight) {
          if (step % 2 == 0) x.load(x_[eight], x_tile, eight, step);
          const std::uint32_t* const two = x_[eight] + step % 2 * 2;
          multiply_add(part[eight], weights, two[0], two[1]);
        }
      }
      const float factors[] = {rows[0].factor(first), rows[1].factor(first)};
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        sums_[i] = __fmaf_rn(part[i / 4][i % 4], factors[i % 4 / 2], sums_[i]);
      }
    }
  }
  /// What was loaded has come to registers: loads that are only begun could find what the tiles'
  /// place is filled with next.
  __device__ void settle() {
    take_sums(sums_);
  }
  __device__ void add_to(float (&sums)[kCount]) const {
#pragma unroll
    for (int i = 0; i < kCount; ++i) sums[i] += sums_[i];
  }

 private:
  static constexpr int kSteps = PackedLayout::kColumns / 16;
  static constexpr int kGroupSteps = Q::kLayout.group / 16;

  std::uint32_t x_[kEights][4];
  float sums_[kCount];
};

/// kEights: of rows of a band of x. kPieceTiles: of a piece of x; as many a warp multiplies at a
/// time. k is whole pieces.
template <class Q, int kEights, int kPieceTiles>
__global__ void __launch_bounds__((most_warps(Q::kLayout, kEights) + 1) * 32, 1)
    packed_kernel(const __grid_constant__ CUtensorMap x, const __grid_constant__ Arguments args) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(1024) std::uint8_t memory[];
  using Stream = TileStream<Q, kPieceTiles>;
  const Places places(memory, args, kPieceTiles, args.slots * Stream::kSlotBytes);
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  let_next_begin();
  if (warp == args.warps) {
    bring_x<kPieceTiles>(args, x, places, lane);
    return;
  }
  const Share<1, false> share(args, warp);
  Stream stream(args, places, share, warp);
  Relay<4 * kEights, 1, false> relay(places, share, warp, lane);
  stream.begin(lane);
  __syncthreads();
  stream.fill();
  wait_for_earlier();

  const Sink<8 * kEights> sink(args, lane);
  const XLane<kEights> x_lane(lane);
  const std::uint32_t barriers = places.full(warp, 0);
  const std::uint8_t* const ring = memory + places.ring(warp, args.slots * Stream::kSlotBytes);
  SlotCursor slot{args.slots};
  SlotCursor piece{args.pieces};
  piece.next(share.member);
  float sums[4 * kEights];
  Way way(share);
#pragma unroll 1
  do {
    const bool there = way.unit < args.units;
    TileSums<Q, kEights> tiles[kPieceTiles];
    if (there) {
      wait_barrier(barriers + 8 * slot.slot, slot.parity);
      wait_barrier(places.x_full(piece.slot), piece.parity);
#pragma unroll
      for (int i = 0; i < kPieceTiles; ++i) {
        tiles[i].make(ring + slot.slot * Stream::kSlotBytes + i * Q::kTileBytes, Stream::kRowBytes,
                      x_lane, places.base + places.x(piece.slot) + i * x_tile_bytes(8 * kEights),
                      lane, args.less);
      }
#pragma unroll
      for (int i = 0; i < kPieceTiles; ++i) tiles[i].settle();
      __syncwarp();
      stream.fetch();
      slot.next();
    } else {
      wait_barrier(places.x_full(piece.slot), piece.parity);
    }
    __syncwarp();
    if (lane == 0) arrive(places.x_free(piece.slot));
    piece.next(share.team);
    const bool whole = way.tile + 1 == args.pieces_k;
    relay.take(sums, way.tile == 0);
#pragma unroll
    for (int i = 0; i < kPieceTiles; ++i) {
      if (there) tiles[i].add_to(sums);
    }
    relay.pass(sums, whole, lane);
    if (!whole || !there) continue;
    if (args.epilogue == Epilogue::kRope) {
      sink.put_heads(way.unit, sums);
    } else {
      sink.put(way.unit, sums);
    }
  } while (!way.next(share, args.pieces_k) || way.rounds > 0);
#endif
}

}  // namespace dendrite::cuda::packed
