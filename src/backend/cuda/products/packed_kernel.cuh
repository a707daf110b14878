#pragma once

#include <algorithm>

#include "backend/cuda/base/hopper.cuh"
#include "backend/cuda/base/launch.cuh"
#include "backend/cuda/products/few_rows_epilogue.cuh"
#include "backend/cuda/products/packed_decode.cuh"
#include "backend/cuda/products/packed_kernels.h"

// Products of up to 64 rows with packed weights, y = x W^T, in the one order of sums that products
// of bf16 weights have: k ascending in steps of 16, one accumulator an output. So the bits are
// those that the widened weight gives.
// Floor: the bytes of W over read bandwidth; a chain of k / 16 products that depend on each other;
// some four instructions a weight.
//
// A warp walks over units of kTiles x 8 outputs, all of k each. It keeps a ring of tiles in shared
// memory that it fills by itself, the first of them before the kernel before is done, and decodes
// them in registers: no other warp waits for it. One more warp brings x, in pieces that all warps
// of a block read alike.
namespace dendrite::cuda::packed {

constexpr int kMostWarps = 14;  // beside the one that brings x
constexpr int kMostSlots = 24;  // of a warp's ring
constexpr int kMostPieces = 8;  // of x that are on their way or read
constexpr int kBarrierBytes =
    ((kMostWarps * kMostSlots + 2 * kMostPieces) * 8 + 1023) / 1024 * 1024;

struct Arguments : few_rows::Arguments {
  const std::uint8_t* weight;
  bool pairs;          // a unit's tiles are gates and ups, or halves of heads
  int tiles_k;         // tiles of 256 columns
  int warps;           // that multiply
  int slots;           // of a warp's ring
  bool as_one;         // warps without a unit fetch the last one
  int pieces;          // of x, each of 256 columns
  std::uint32_t less;  // see LaneTile
};

/// x lies in shared memory as few_rows_wgmma.cu has it: tiles of 64 columns, in whose rows of 128
/// bytes the eight of 16 bytes are exchanged (tensor_map.h).
constexpr int kPieceTiles = PackedLayout::kColumns / few_rows::kTileK;
__host__ __device__ constexpr int piece_bytes(int tile_rows) {
  return tile_rows * PackedLayout::kColumns * 2;
}

__device__ inline void copy_bytes(std::uint32_t target, const void* from, std::uint32_t bytes,
                                  std::uint32_t barrier) {
#if __CUDA_ARCH__ >= 900
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(target),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
#endif
}

/// The places of a block's barriers and data in shared memory.
struct Places {
  std::uint8_t* memory;
  std::uint32_t base;
  int pieces;
  int x_bytes;   // of a piece
  int exchange;  // where warps of a pair meet

  __device__ Places(std::uint8_t* shared, const Arguments& args, int ring_bytes)
      : memory(shared),
        base(shared_address(shared)),
        pieces(args.pieces),
        x_bytes(piece_bytes(args.tile_rows)),
        exchange(kBarrierBytes + args.pieces * x_bytes + args.warps * ring_bytes) {}

  __device__ std::uint32_t x_full(int piece) const { return base + 8 * piece; }
  __device__ std::uint32_t x_free(int piece) const { return base + 8 * (kMostPieces + piece); }
  __device__ std::uint32_t full(int warp, int slot) const {
    return base + 8 * (2 * kMostPieces + warp * kMostSlots + slot);
  }
  __device__ int x(int piece) const { return kBarrierBytes + piece * x_bytes; }
  __device__ int ring(int warp, int ring_bytes) const {
    return kBarrierBytes + pieces * x_bytes + warp * ring_bytes;
  }
};

/// Units of this block's warps, round after round.
__device__ inline int unit_of(const Arguments& args, int round, int warp) {
  return (round * static_cast<int>(gridDim.x) + static_cast<int>(blockIdx.x)) * args.warps + warp;
}
__device__ inline int rounds_of(const Arguments& args) {
  const int a_round = static_cast<int>(gridDim.x) * args.warps;
  return (args.units - static_cast<int>(blockIdx.x) * args.warps + a_round - 1) / a_round;
}

/// The tile of the unit's outputs number `which`, counted in rows of 8.
template <int kTiles>
__device__ int tile_row(const Arguments& args, int unit, int which) {
  if (args.pairs && kTiles == 1) {  // two warps share a unit
    which = unit % 2;
    unit /= 2;
  }
  if (args.epilogue == Epilogue::kSiluMul) return unit + which * (args.ffn / 8);
  if (args.epilogue == Epilogue::kRope) {
    const int half = static_cast<int>(args.rope.head_dim) / 16;
    return unit / half * 2 * half + unit % half + which * half;
  }
  return unit * kTiles + which;
}

/// A warp's stream of tiles: those of its units, one column of them after the other.
template <class Q, int kTiles>
class TileStream {
 public:
  static constexpr int kSlotBytes = kTiles * Q::kTileBytes;

  __device__ TileStream(const Arguments& args, const Places& places, int warp)
      : args_(args),
        warp_(warp),
        barriers_(places.full(warp, 0)),
        ring_(places.base + places.ring(warp, args.slots * kSlotBytes)),
        rounds_(rounds_of(args)) {
    enter_unit();
  }

  /// Of all lanes: makes the barriers and fills the ring.
  __device__ void begin(int lane) {
    if (lane < args_.slots) init_barrier(barriers_ + 8 * lane, 1);
    publish_barriers();
    __syncwarp();
    for (int i = 0; lane == 0 && i < args_.slots; ++i) fetch();
  }
  /// Of a lane: the next tiles into the next slot.
  __device__ void fetch() {
    if (left_ > 0) {
      const std::uint32_t barrier = barriers_ + 8 * slot_;
      const std::uint32_t target = ring_ + slot_ * kSlotBytes;
      arrive_for_bytes(barrier, kSlotBytes);
#pragma unroll
      for (int i = 0; i < kTiles; ++i) {
        copy_bytes(target + i * Q::kTileBytes, from_[i], Q::kTileBytes, barrier);
        from_[i] += Q::kTileBytes;
      }
      if (--left_ == 0) enter_unit();
    }
    if (++slot_ == args_.slots) slot_ = 0;
  }

 private:
  __device__ void enter_unit() {
    int unit = unit_of(args_, round_, warp_);
    if (round_ == rounds_) return;
    if (unit >= args_.units) {
      if (!args_.as_one) return;
      unit = args_.units - 1;
    }
    ++round_;
    left_ = args_.tiles_k;
#pragma unroll
    for (int i = 0; i < kTiles; ++i) {
      from_[i] = args_.weight +
                 std::int64_t{tile_row<kTiles>(args_, unit, i)} * args_.tiles_k * Q::kTileBytes;
    }
  }

  const Arguments& args_;
  int warp_;
  std::uint32_t barriers_;
  std::uint32_t ring_;
  int rounds_;
  int round_ = 0;
  int left_ = 0;  // tiles of the unit
  int slot_ = 0;
  const std::uint8_t* from_[kTiles] = {};
};

/// A place in a ring, and the parity of its barriers' phase.
struct SlotCursor {
  int slots;
  int slot = 0;
  std::uint32_t parity = 0;

  __device__ void next() {
    if (++slot == slots) {
      slot = 0;
      parity ^= 1;
    }
  }
};

/// Brings x, once a round. What lies behind its rows and columns is zeros.
__device__ inline void stream_x(const Arguments& args, const CUtensorMap& x, const Places& places) {
  const int tiles = rounds_of(args) * args.tiles_k;
  SlotCursor cursor{args.pieces};
  int tile = 0;
  for (int i = 0; i < tiles; ++i) {
    if (i >= args.pieces) wait_barrier(places.x_free(cursor.slot), cursor.parity ^ 1);
    const std::uint32_t full = places.x_full(cursor.slot);
    arrive_for_bytes(full, places.x_bytes);
    copy_tiles(places.base + places.x(cursor.slot), x, 0, tile * kPieceTiles, full);
    cursor.next();
    if (++tile == args.tiles_k) tile = 0;
  }
}

/// All that the warp does that brings x.
__device__ inline void bring_x(const Arguments& args, const CUtensorMap& x, const Places& places,
                               int lane) {
  if (lane == 0) prefetch_map(x);
  if (lane < args.pieces) {
    init_barrier(places.x_full(lane), 1);
    init_barrier(places.x_free(lane), args.warps);
  }
  publish_barriers();
  __syncthreads();
  wait_for_earlier();
  if (lane == 0) stream_x(args, x, places);
}

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

/// The second warp of a pair hands its sums to the first one. Turns alternate between two places.
template <int kBlocks>
__device__ bool meet(const Places& places, int warp, int lane, int turn,
                     const float (&mine)[kBlocks][4], float (&both)[2][kBlocks][4]) {
  auto* const shared = reinterpret_cast<float4*>(places.memory + places.exchange) +
                       ((warp / 2 * 2 + turn % 2) * kBlocks) * 32 + lane;
  if (warp % 2 == 1) {
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      const float(&c)[4] = mine[block];
      shared[block * 32] = make_float4(c[0], c[1], c[2], c[3]);
    }
  }
  asm volatile("bar.sync %0, 64;" ::"r"(1 + warp / 2) : "memory");
  if (warp % 2 == 1) return false;
#pragma unroll
  for (int block = 0; block < kBlocks; ++block) {
    const float4 other = shared[block * 32];
    both[1][block][0] = other.x;
    both[1][block][1] = other.y;
    both[1][block][2] = other.z;
    both[1][block][3] = other.w;
#pragma unroll
    for (int i = 0; i < 4; ++i) both[0][block][i] = mine[block][i];
  }
  return true;
}

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

/// sums += x W^T over the columns of one tile, for kTiles tiles of rows.
template <class Q, int kTiles, int kBlocks>
__device__ void multiply_tile(const std::uint8_t* data, std::uint32_t piece, const XLane& x,
                              int lane, std::uint32_t less, float (&sums)[kTiles][kBlocks][4]) {
  const LaneTile<Q> first(data, lane, less);
  const LaneTile<Q> second(data + (kTiles - 1) * Q::kTileBytes, lane, less);
#pragma unroll
  for (int step = 0; step < PackedLayout::kColumns / 16; ++step) {
    uint2 weights[kTiles];
    weights[0] = first.step(step);
    if constexpr (kTiles == 2) weights[1] = second.step(step);
#pragma unroll
    for (int block = 0; block < kBlocks; ++block) {
      std::uint32_t a[4];
      load_matrices(a, x.at<kBlocks>(piece, block, step));
#pragma unroll
      for (int t = 0; t < kTiles; ++t) multiply_add(sums[t][block], a, weights[t].x, weights[t].y);
    }
  }
}

/// kBlocks: of 16 rows of x.
template <class Q, int kTiles, int kBlocks>
__global__ void __launch_bounds__((kMostWarps + 1) * 32, 1)
    packed_kernel(const __grid_constant__ CUtensorMap x, const __grid_constant__ Arguments args) {
#if __CUDA_ARCH__ >= 900
  extern __shared__ __align__(1024) std::uint8_t memory[];
  const Places places(memory, args, args.slots * TileStream<Q, kTiles>::kSlotBytes);
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  let_next_begin();
  if (warp == args.warps) {
    bring_x(args, x, places, lane);
    return;
  }
  TileStream<Q, kTiles> stream(args, places, warp);
  stream.begin(lane);
  __syncthreads();
  wait_for_earlier();

  const Sink<kBlocks> sink(args, lane);
  const XLane x_lane(lane);
  const int rounds = rounds_of(args);
  const std::uint32_t barriers = places.full(warp, 0);
  const std::uint8_t* const ring =
      memory + places.ring(warp, args.slots * TileStream<Q, kTiles>::kSlotBytes);
  SlotCursor slot{args.slots};
  SlotCursor piece{args.pieces};
  for (int round = 0; round < rounds; ++round) {
    const int unit = unit_of(args, round, warp);
    float sums[kTiles][kBlocks][4] = {};
#pragma unroll 1
    for (int tile = 0; tile < args.tiles_k; ++tile) {
      wait_barrier(places.x_full(piece.slot), piece.parity);
      if (unit < args.units) {
        wait_barrier(barriers + 8 * slot.slot, slot.parity);
        multiply_tile<Q, kTiles, kBlocks>(ring + slot.slot * TileStream<Q, kTiles>::kSlotBytes,
                                          places.base + places.x(piece.slot), x_lane, lane,
                                          args.less, sums);
      }
      __syncwarp();  // both have been read
      if (lane == 0) {
        arrive(places.x_free(piece.slot));
        stream.fetch();
      }
      piece.next();
      if (unit < args.units) slot.next();
    }
    if (unit >= args.units) continue;
    if constexpr (kTiles == 2) {
      if (args.pairs) {
        sink.put_pairs(unit, sums);
      } else {
        sink.put(unit, sums);
      }
    } else if (args.pairs) {
      float both[2][kBlocks][4];
      if (meet(places, warp, lane, round, sums[0], both)) sink.put_pairs(unit / 2, both);
    } else {
      sink.put(unit, sums);
    }
  }
#endif
}

}  // namespace dendrite::cuda::packed
