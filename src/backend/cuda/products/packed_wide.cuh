#pragma once

#include "backend/cuda/base/wgmma.cuh"
#include "backend/cuda/products/packed_codes.cuh"
#include "backend/cuda/products/packed_sink.cuh"
#include "backend/cuda/products/packed_stream.cuh"

// Products of more than 32 rows with packed weights on compute capability 9.0, in the order of sums
// of packed_codes.cuh: a warpgroup multiplies what its warps decode, 64 outputs, with a band of 64
// or 128 rows of x as it lies in shared memory. While tensor cores are at a chunk, two steps of 16
// columns, it decodes the next one. Sums of a part are of halves of 64 rows: one is multiplied by
// the part's factors while the other is summed.
namespace dendrite::cuda::packed {

/// Warps of a block that multiply, at most, by rows of its band, and registers of theirs and of the
/// warpgroup that brings x and weights: together what a block of so many threads begins with.
constexpr int most_wide_warps(int rows) {
  return rows == 64 ? 12 : 8;
}
template <int kRows>
constexpr int kWideRegisters = kRows == 64 ? 160 : 240;
template <int kRows>
constexpr int kBringRegisters = kRows == 64 ? 32 : 24;
/// Teams are of one warpgroup where sums leave no registers for handing them on.
template <int kRows>
constexpr bool kWideAlone = kRows == 128;
constexpr int kBringThreads = 128;  // a warp brings x, one the weights of each warpgroup

/// Pieces of x are smaller than a tile of 256 columns: of 128 rows few large ones would fit.
constexpr int kWidePieceTiles = 1;                          // of 64 columns
constexpr int kTilePieces = kTileCopies / kWidePieceTiles;  // of a tile
constexpr int kMostWidePieces = 32;
constexpr int kMostWideSlots = 8;
constexpr int kWideBarrierBytes = 1024;
constexpr int wide_piece_bytes(int rows) {
  return rows * kWidePieceTiles * few_rows::kTileRowBytes;
}

/// Behind the barriers that Relay has, a block's shared memory: barriers, pieces of x, of each
/// warpgroup a ring of its warps' tiles, sums that are handed on.
template <class Q, int kRows>
struct WidePlaces : Places {
  static constexpr int kPieceBytes = wide_piece_bytes(kRows);
  static constexpr int kSlotBytes = 4 * 2 * Q::kTileBytes;
  int slots;

  __device__ WidePlaces(std::uint8_t* shared, const Arguments& args)
      : Places(shared, args, 1, 0), slots(args.slots) {
    sums = ring(args.warps / 4);
  }

  __device__ std::uint32_t x_full(int piece) const { return barrier(piece); }
  __device__ std::uint32_t x_free(int piece) const { return barrier(kMostWidePieces + piece); }
  __device__ std::uint32_t full(int group, int slot) const {
    return barrier(2 * kMostWidePieces + group * kMostWideSlots + slot);
  }
  __device__ std::uint32_t free(int group, int slot) const {
    return barrier(2 * kMostWidePieces + (3 + group) * kMostWideSlots + slot);
  }
  __device__ int x(int piece) const {
    return kBarrierBytes + kWideBarrierBytes + piece * kPieceBytes;
  }
  __device__ int ring(int group) const { return x(pieces) + group * slots * kSlotBytes; }

 private:
  __device__ std::uint32_t barrier(int i) const { return base + kBarrierBytes + 8 * i; }
};

/// Brings x, once a round. What lies behind its rows and columns is zeros.
template <class Q, int kRows>
__device__ void bring_band(const Arguments& args, const CUtensorMap& x,
                           const WidePlaces<Q, kRows>& places, int lane) {
  const Share<4, true> share(args, 0);
  if (lane == 0) prefetch_map(x);
  if (lane < args.pieces) {
    init_barrier(places.x_full(lane), 1);
    init_barrier(places.x_free(lane), share.teams * 4);
  }
  publish_barriers();
  __syncthreads();
  wait_for_earlier();
  if (lane > 0) return;
  const int band = static_cast<int>(blockIdx.y);
  SlotCursor piece{args.pieces};
  const int count = share.rounds * args.tiles_k * kTilePieces;
  int column = 0;  // of a piece's width
  for (int i = 0; i < count; ++i) {
    if (i >= args.pieces) wait_barrier(places.x_free(piece.slot), piece.parity ^ 1);
    const std::uint32_t full = places.x_full(piece.slot);
    arrive_for_bytes(full, WidePlaces<Q, kRows>::kPieceBytes);
    copy_tiles(places.base + places.x(piece.slot), x, band * kRows, column * kWidePieceTiles, full);
    piece.next();
    if (++column == args.tiles_k * kTilePieces) column = 0;
  }
}

/// Brings a warpgroup's weights, the first of them before earlier kernels are done. Where there is
/// no unit, a warp has the last one's.
template <class Q, int kRows>
__device__ void bring_weights(const Arguments& args, const WidePlaces<Q, kRows>& places, int group,
                              int lane) {
  constexpr int kSlotBytes = WidePlaces<Q, kRows>::kSlotBytes;
  const Share<4, kWideAlone<kRows>> share(args, group * 4);
  Way way(share);
  if (lane < args.slots) {
    init_barrier(places.full(group, lane), 1);
    init_barrier(places.free(group, lane), 4);
  }
  publish_barriers();
  __syncwarp();
  SlotCursor slot{args.slots};
  for (int early = args.slots; true; --early) {
    if (early == 0 || (early > 0 && way.rounds <= 0)) __syncthreads();
    if (way.rounds <= 0) return;
    if (early <= 0) wait_barrier(places.free(group, slot.slot), slot.parity ^ 1);
    const std::uint32_t full = places.full(group, slot.slot);
    if (lane == 0) arrive_for_bytes(full, kSlotBytes);
    __syncwarp();
    if (lane < 8) {  // a tile each
      const int unit = min(way.unit + lane / 2, args.units - 1);
      const std::int64_t tile =
          std::int64_t{upper_row(args, unit) + lane % 2 * rows_to_lower(args)} * args.tiles_k +
          way.tile;
      copy_bytes(places.base + places.ring(group) + slot.slot * kSlotBytes + lane * Q::kTileBytes,
                 args.weight + tile * Q::kTileBytes, Q::kTileBytes, full);
    }
    slot.next();
    way.next(share, args.tiles_k);
  }
}

/// A warp's part of its warpgroup's products, tile after tile.
template <class Q, int kRows>
class WideChain {
 public:
  static constexpr int kHalves = kRows / 64;

  __device__ WideChain(const Arguments& args, const WidePlaces<Q, kRows>& places, int warp,
                       int lane, int member, int team)
      : args_(args),
        places_(places),
        group_(warp / 4),
        lane_(lane),
        team_(team),
        ring_(places.ring(warp / 4) + warp % 4 * 2 * Q::kTileBytes),
        slot_{args.slots},
        piece_{args.pieces} {
    if (member > 0) piece_.next(member * kTilePieces);
  }

  /// Decodes what the first tile begins with.
  __device__ void begin() {
    enter_tile();
    enter_piece();
    decode(0);
  }

  /// The sums of the tile whose begin is decoded. more: decodes that of the next one, too
  __device__ void run(float (&tile)[kRows / 2], bool more) {
#pragma unroll
    for (int half = 0; half < kHalves; ++half) multiply(half, 0);
#pragma unroll
    for (int chunk = 0; chunk < kChunks; ++chunk) {
      const int last_step = (chunk + 1) * kChunkSteps - 1;
      const bool ends_part = (last_step + 1) % kPartSteps == 0;
      const bool ends_tile = chunk + 1 == kChunks;
      const bool ends_piece = (last_step + 1) % kPieceSteps == 0;
      const int read_piece = read_piece_;
      const int read_slot = slot_.slot;
      float factors[2];
      if (ends_part) read_factors(factors, last_step);
      if (ends_tile) leave_tile();
      if (!ends_tile || more) {
        if (ends_tile) enter_tile();
        if (ends_piece) enter_piece();
        decode(ends_tile ? 0 : chunk + 1);
      }
#pragma unroll
      for (int half = 0; half < kHalves; ++half) {
        if (ends_part) {
          if (ends_tile && half + 1 == kHalves) {
            wait_products<0>();
          } else {
            wait_products<kHalves - 1>();
          }
          take_sums(sums_[half]);
          scale(tile + half * 32, half, factors, last_step < kPartSteps);
        }
        if (!ends_tile) multiply(half, chunk + 1);
      }
      if (!ends_part) wait_products<kHalves>();
      // Factors have come to registers where sums were multiplied by them: loads that are only
      // begun could find what the slot is filled with next.
      if (ends_tile) take_sums(tile);
      if (ends_piece) {
        __syncwarp();
        if (lane_ == 0) arrive(places_.x_free(read_piece));
        if (ends_tile && lane_ == 0) arrive(places_.free(group_, read_slot));
      }
    }
  }

 private:
  static constexpr int kChunkSteps = 2;
  static constexpr int kChunks = PackedLayout::kColumns / 16 / kChunkSteps;
  static constexpr int kPieceSteps = kWidePieceTiles * few_rows::kTileK / 16;
  static constexpr int kGroupSteps = Q::kLayout.group / 16;

  __device__ void enter_tile() {
    wait_barrier(places_.full(group_, slot_.slot), slot_.parity);
    data_ = ring_ + slot_.slot * WidePlaces<Q, kRows>::kSlotBytes;
    if constexpr (LaneRow<Q>::kHasMinus) {
#pragma unroll
      for (int i = 0; i < 2; ++i) minus_[i] = row(i).minus();
    }
  }
  __device__ void leave_tile() {
    slot_.next();
    if (team_ > 1) piece_.next((team_ - 1) * kTilePieces);
  }
  __device__ void enter_piece() {
    wait_barrier(places_.x_full(piece_.slot), piece_.parity);
    read_piece_ = piece_.slot;
    piece_.next();
  }

  /// Of the lane's outputs g and g + 8.
  __device__ LaneRow<Q> row(int i) const {
    return {places_.memory + data_ + i * Q::kTileBytes, lane_, args_.less};
  }
  __device__ void read_factors(float (&factors)[2], int step) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) factors[i] = row(i).factor(step);
  }
  __device__ void decode(int chunk) {
#pragma unroll
    for (int i = 0; i < kChunkSteps; ++i) {
      const int step = chunk * kChunkSteps + i;
      std::uint32_t(&a)[4] = a_[chunk % 2][i];
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if (step % (LaneRow<Q>::kVectorSteps / 2) == 0) {
          codes_[j] = half_vector(data_ + j * Q::kTileBytes, step);
        }
        if (step % kGroupSteps == 0) groups_[j] = row(j).group(step, minus_[j]);
        const uint2 pairs = groups_[j].pairs(codes_[j], step);
        a[j] = pairs.x;
        a[2 + j] = pairs.y;
      }
    }
  }
  /// Half of LaneRow::load(), which leaves registers to sums.
  __device__ uint4 half_vector(int tile, int step) const {
    constexpr int kSteps = LaneRow<Q>::kVectorSteps;
    const uint4* const vector =
        reinterpret_cast<const uint4*>(places_.memory + tile) + step / kSteps * 32 + lane_;
    const bool second = step % kSteps > 0;
    const uint2 half = reinterpret_cast<const uint2*>(vector)[second ? 1 : 0];
    return second ? make_uint4(0, 0, half.x, half.y) : make_uint4(half.x, half.y, 0, 0);
  }
  __device__ void multiply(int half, int chunk) {
    const std::uint32_t x = tile_descriptor(places_.base + places_.x(read_piece_)) +
                            half * (64 * few_rows::kTileRowBytes / 16);
    begin_products();
#pragma unroll
    for (int i = 0; i < kChunkSteps; ++i) {
      const int step = chunk * kChunkSteps + i;
      multiply_add_bf16(sums_[half], a_[chunk % 2][i], x + step % kPieceSteps * 2,
                        step % kPartSteps > 0);
    }
    commit_products();
  }
  __device__ void scale(float* tile, int half, const float (&factors)[2], bool first) const {
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      tile[i] = __fmaf_rn(sums_[half][i], factors[i / 2 % 2], first ? 0.0F : tile[i]);
    }
  }

  const Arguments& args_;
  const WidePlaces<Q, kRows>& places_;
  int group_;
  int lane_;
  int team_;
  // Where in shared memory the warp's ring is, and the tiles whose codes are read.
  int ring_;
  int data_ = 0;
  SlotCursor slot_;
  SlotCursor piece_;    // the next one
  int read_piece_ = 0;  // that is read
  // Of both rows of a lane.
  uint4 codes_[2];
  LaneGroup<Q> groups_[2];
  float minus_[2] = {};
  std::uint32_t a_[2][kChunkSteps][4];
  /// Of a part: that of x's row 8 j + 2t + i % 2 is at 4 j + i, for i < 2 of output g, else g + 8.
  float sums_[kHalves][32];
};

/// Warps beyond the last unit do its work once more and keep nothing: a warpgroup multiplies as
/// one.
template <class Q, int kRows>
__global__ void __launch_bounds__(most_wide_warps(kRows) * 32 + kBringThreads, 1)
    packed_wide_kernel(const __grid_constant__ CUtensorMap x,
                       const __grid_constant__ Arguments args) {
#ifdef DENDRITE_SM90A
  extern __shared__ __align__(1024) std::uint8_t memory[];
  const WidePlaces<Q, kRows> places(memory, args);
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  let_next_begin();
  if (warp >= args.warps) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kBringRegisters<kRows>));
    const int brings = warp - args.warps;
    if (brings == 0) bring_band(args, x, places, lane);
    if (brings > 0 && brings <= args.warps / 4) bring_weights(args, places, brings - 1, lane);
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kWideRegisters<kRows>));
  const Share<4, kWideAlone<kRows>> share(args, warp);
  Relay<kRows / 2, 4, kWideAlone<kRows>> relay(places, share, warp, lane);
  __syncthreads();
  wait_for_earlier();

  WideChain<Q, kRows> chain(args, places, warp, lane, share.member, share.team);
  Way way(share);
  float tile[kRows / 2];
  float sums[kRows / 2];
  if (way.rounds <= 0) return;
  chain.begin();
#pragma unroll 1
  while (true) {
    const int unit = way.unit;
    const bool fresh = way.tile == 0;
    const bool whole = way.tile + 1 == args.tiles_k;
    const bool more = !way.next(share, args.tiles_k) || way.rounds > 0;
    chain.run(tile, more);
    relay.take(sums, fresh);
#pragma unroll
    for (int i = 0; i < kRows / 2; ++i) sums[i] = __fadd_rn(sums[i], tile[i]);
    relay.pass(sums, whole, lane);
    if (whole && unit < args.units) Sink<kRows>(args, lane).put(unit, sums);
    if (!more) break;
  }
#endif
}

}  // namespace dendrite::cuda::packed
