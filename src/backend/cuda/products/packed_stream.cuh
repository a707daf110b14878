#pragma once

#include "backend/cuda/base/hopper.cuh"
#include "backend/cuda/base/launch.cuh"
#include "backend/cuda/products/few_rows_arguments.cuh"
#include "backend/cuda/products/packed_kernels.h"

// What the kernels of products with packed weights share: how work is cut among warps, how weights
// and x come to shared memory, and how sums go from warp to warp.
//
// A unit is 16 outputs, all of k. A team of warps (or warpgroups, four units at a time) works on a
// unit: tile after tile of k is the next member's, which multiplies it, waits for the sums of the
// tiles before, adds its own and hands them on.
namespace dendrite::cuda::packed {

constexpr int kMostWarps = 14;  // beside the one that brings x
/// Of kernels of so many eights of rows. Of 12 warps on a multiprocessor each may have 168
/// registers, of 16 128: too few for 32 rows, where the products bind. Where decoding does, more
/// warps are faster all the same (two levels of four bits, on an H200).
constexpr int most_warps(const PackedLayout& layout, int eights) {
  const bool decodes_fast =
      layout.codes == PackedCodes::kRaised ||
      (layout.codes == PackedCodes::kBytes && layout.scales == GroupScales::kF16);
  return decodes_fast && eights == 4 ? 11 : kMostWarps;
}
constexpr int kMostSlots = 24;  // of a warp's ring
constexpr int kMostPieces = 8;  // of x that are on their way or read
constexpr int kBarrierBytes =
    ((kMostWarps * (kMostSlots + 1) + 2 * kMostPieces) * 8 + 1023) / 1024 * 1024;

struct Arguments : few_rows::Arguments {
  const std::uint8_t* weight;
  int tiles_k;   // tiles of 256 columns
  int pieces_k;  // pieces of x, of packed_kernel.cuh: of one or two tiles
  int warps;     // that multiply
  /// Warps of a unit, of packed_wide.cuh warpgroups: at most tiles_k. Pieces of x are tiles of
  /// whole teams, so that a place is always the same member's: who waits for the next piece of it
  /// has read the one before, whose phase could be taken for it else.
  int team;
  int teams;
  int rounds;          // in which all units are worked on
  int slots;           // of a warp's ring
  int pieces;          // of x
  std::uint32_t less;  // see LaneTile
};

/// x lies in shared memory as few_rows_wgmma.cu has it: tiles of 64 columns, in whose rows of 128
/// bytes the eight of 16 bytes are exchanged (tensor_map.h).
constexpr int kTileCopies = PackedLayout::kColumns / few_rows::kTileK;  // of such tiles
/// Of x, for a tile of weights.
__host__ __device__ constexpr int x_tile_bytes(int tile_rows) {
  return tile_rows * PackedLayout::kColumns * 2;
}

/// The places of a block's barriers and data in shared memory.
struct Places {
  std::uint8_t* memory;
  std::uint32_t base;
  int pieces;
  int x_bytes;  // of a piece of one or several tiles
  int sums;     // that are handed on

  __device__ Places(std::uint8_t* shared, const Arguments& args, int piece_tiles, int ring_bytes)
      : memory(shared),
        base(shared_address(shared)),
        pieces(args.pieces),
        x_bytes(piece_tiles * x_tile_bytes(args.tile_rows)),
        sums(kBarrierBytes + args.pieces * x_bytes + args.warps * ring_bytes) {}

  __device__ std::uint32_t x_full(int piece) const { return base + 8 * piece; }
  __device__ std::uint32_t x_free(int piece) const { return base + 8 * (kMostPieces + piece); }
  __device__ std::uint32_t turn(int warp) const { return base + 8 * (2 * kMostPieces + warp); }
  __device__ std::uint32_t full(int warp, int slot) const {
    return base + 8 * (2 * kMostPieces + kMostWarps + warp * kMostSlots + slot);
  }
  __device__ int x(int piece) const { return kBarrierBytes + piece * x_bytes; }
  __device__ int ring(int warp, int ring_bytes) const {
    return kBarrierBytes + pieces * x_bytes + warp * ring_bytes;
  }
};

/// The work of a warp: a unit in each round, of whose tiles it has those with its turn.
/// kWarps: that work as one, 4 of a warpgroup, each on a unit of its own. Neighbouring warps (or
/// warpgroups) are of different teams, so that those whose turn it is share no scheduler.
/// kAlone: teams are of one.
template <int kWarps, bool kAlone>
struct Share {
  int rounds;
  int first;   // unit of the block's first round
  int stride;  // to the next round's
  int team;
  int teams;
  int of_teams;  // this team's number
  int member = 0;

  __device__ Share(const Arguments& args, int warp)
      : team(kAlone ? 1 : args.team), teams(args.teams), of_teams(warp / kWarps) {
    for (; !kAlone && of_teams >= teams; of_teams -= teams) ++member;
    const int begin = static_cast<int>(blockIdx.x) * teams * kWarps;
    stride = static_cast<int>(gridDim.x) * teams * kWarps;
    rounds = args.rounds - (begin + (args.rounds - 1) * stride < args.units ? 0 : 1);
    first = begin + of_teams * kWarps + warp % kWarps;
  }
};

/// A warp's way through its tiles, or pieces of several: every team-th of all rounds.
struct Way {
  int rounds;  // that are left
  int unit;
  int tile;

  template <int kWarps, bool kAlone>
  __device__ explicit Way(const Share<kWarps, kAlone>& share)
      : rounds(share.rounds), unit(share.first), tile(share.member) {}

  /// Returns whether a round began or nothing is left.
  template <int kWarps, bool kAlone>
  __device__ bool next(const Share<kWarps, kAlone>& share, int of_unit) {
    tile += share.team;
    if (tile < of_unit) return false;
    tile -= of_unit;  // a team is at most as large
    unit += share.stride;
    --rounds;
    return true;
  }
};

/// How far the lower tile of a unit is behind the upper one, counted in rows of 8. They are gates
/// and ups, or halves of heads, or follow each other.
__device__ inline int rows_to_lower(const Arguments& args) {
  if (args.epilogue == Epilogue::kSiluMul) return args.ffn / 8;
  return args.epilogue == Epilogue::kRope ? static_cast<int>(args.rope.head_dim) / 16 : 1;
}
/// Where the upper one is.
__device__ inline int upper_row(const Arguments& args, int unit) {
  if (args.epilogue == Epilogue::kSiluMul) return unit;
  if (args.epilogue == Epilogue::kRope) {
    const int half = static_cast<int>(args.rope.head_dim) / 16;
    return unit / half * 2 * half + unit % half;
  }
  return unit * 2;
}

/// A warp's stream of units' tiles, which it brings itself: kPieceTiles of the upper row and as
/// many of the lower one at a time.
template <class Q, int kPieceTiles>
class TileStream {
 public:
  static constexpr int kRowBytes = kPieceTiles * Q::kTileBytes;
  static constexpr int kSlotBytes = 2 * kRowBytes;
  using Shares = Share<1, false>;

  __device__ TileStream(const Arguments& args, const Places& places, const Shares& share, int warp)
      : args_(args),
        share_(share),
        barriers_(places.full(warp, 0)),
        ring_(places.base + places.ring(warp, args.slots * kSlotBytes)),
        way_(share),
        lower_(std::int64_t{rows_to_lower(args)} * args.tiles_k * Q::kTileBytes) {
    enter_unit();
  }

  /// Makes the barriers and begins to fill the ring. Of all lanes, as fill() and fetch().
  __device__ void begin(int lane) {
    if (lane < args_.slots) init_barrier(barriers_ + 8 * lane, 1);
    publish_barriers();
    __syncwarp();
    for (int i = 0; i < args_.under_way; ++i) fetch();
  }
  /// The rest of the ring.
  __device__ void fill() {
    for (int i = args_.under_way; i < args_.slots && way_.rounds > 0; ++i) {
      wait_barrier(barriers_ + 8 * (i - args_.under_way), 0);
      fetch();
    }
  }
  /// The next tiles into the next slot.
  __device__ void fetch() {
    if (way_.rounds > 0) {
      if (elect_one()) {
        const std::uint32_t barrier = barriers_ + 8 * slot_;
        const std::uint32_t target = ring_ + slot_ * kSlotBytes;
        arrive_for_bytes(barrier, kSlotBytes);
        copy_bytes_once(target, from_, kRowBytes, barrier);
        copy_bytes_once(target + kRowBytes, from_ + lower_, kRowBytes, barrier);
      }
      from_ += share_.team * kRowBytes;
      if (way_.next(share_, args_.pieces_k)) enter_unit();
    }
    if (++slot_ == args_.slots) slot_ = 0;
  }

 private:
  __device__ void enter_unit() {
    if (way_.rounds <= 0) return;
    if (way_.unit >= args_.units) {
      way_.rounds = 0;
      return;
    }
    const std::int64_t row = std::int64_t{upper_row(args_, way_.unit)} * args_.tiles_k;
    from_ = args_.weight + row * Q::kTileBytes + way_.tile * kRowBytes;
  }

  const Arguments& args_;
  const Shares& share_;
  std::uint32_t barriers_;
  std::uint32_t ring_;
  Way way_;
  int slot_ = 0;
  const std::uint8_t* from_ = nullptr;  // the upper one
  std::int64_t lower_;                  // bytes behind it
};

/// A place in a ring, and the parity of its barriers' phase.
struct SlotCursor {
  int slots;
  int slot = 0;
  std::uint32_t parity = 0;

  /// count: at most `slots`
  __device__ void next(int count = 1) {
    slot += count;
    if (slot < slots) return;
    slot -= slots;
    parity ^= 1;
  }
};

/// Brings x, once a round. What lies behind its rows and columns is zeros.
template <int kPieceTiles>
__device__ void bring_x(const Arguments& args, const CUtensorMap& x, const Places& places,
                        int lane) {
  const Share<1, true> share(args, 0);
  if (lane == 0) prefetch_map(x);
  if (lane < args.pieces) {
    init_barrier(places.x_full(lane), 1);
    init_barrier(places.x_free(lane), share.teams);
  }
  publish_barriers();
  __syncthreads();
  wait_for_earlier();
  if (lane > 0) return;
  const int row = static_cast<int>(blockIdx.y) * args.tile_rows;
  SlotCursor cursor{args.pieces};
  int piece = 0;
  for (int i = 0; i < share.rounds * args.pieces_k; ++i) {
    if (i >= args.pieces) wait_barrier(places.x_free(cursor.slot), cursor.parity ^ 1);
    const std::uint32_t full = places.x_full(cursor.slot);
    arrive_for_bytes(full, places.x_bytes);
    copy_tiles(places.base + places.x(cursor.slot), x, row, piece * kPieceTiles * kTileCopies,
               full);
    cursor.next();
    if (++piece == args.pieces_k) piece = 0;
  }
}

/// Hands sums from member to member of a team; a team of one keeps them.
template <int kSums, int kWarps, bool kAlone>
class Relay {
 public:
  __device__ Relay(const Places& places, const Share<kWarps, kAlone>& share, int warp, int lane)
      : alone_(kAlone || share.team == 1),
        mine_(places.turn(warp)),
        next_(places.turn(warp + (share.member + 1 == share.team ? 1 - share.team : 1) *
                                     share.teams * kWarps)),
        sums_(reinterpret_cast<float4*>(places.memory + places.sums +
                                        share.of_teams * kWarps * 32 * kSums * 4) +
              warp % kWarps * 32 + lane) {
    if (alone_ || lane > 0) return;
    init_barrier(mine_, 1);
    if (share.member == 0) arrive(mine_);
  }

  /// Waits for the turn; sums are those of the member before, or zeros for a fresh unit.
  __device__ void take(float* sums, bool fresh) {
    if (!alone_) {
      wait_barrier(mine_, parity_);
      parity_ ^= 1;
    }
    if (fresh) {
#pragma unroll
      for (int i = 0; i < kSums; ++i) sums[i] = 0;
    } else if (!alone_) {
#pragma unroll
      for (int i = 0; i < kSums / 4; ++i) {
        const float4 four = sums_[i * kWarps * 32];
        sums[4 * i] = four.x;
        sums[4 * i + 1] = four.y;
        sums[4 * i + 2] = four.z;
        sums[4 * i + 3] = four.w;
      }
    }
  }
  /// whole: the unit's sums, which nobody waits for.
  __device__ void pass(const float* sums, bool whole, int lane) const {
    if (alone_) return;
    if (!whole) {
#pragma unroll
      for (int i = 0; i < kSums / 4; ++i) {
        sums_[i * kWarps * 32] =
            make_float4(sums[4 * i], sums[4 * i + 1], sums[4 * i + 2], sums[4 * i + 3]);
      }
    }
    __syncwarp();
    if (lane == 0) arrive(next_);
  }

 private:
  bool alone_;
  std::uint32_t mine_;
  std::uint32_t next_;
  std::uint32_t parity_ = 0;
  float4* sums_;
};

}  // namespace dendrite::cuda::packed
