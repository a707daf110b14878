#pragma once

#include "backend/cuda/base/hopper.cuh"
#include "backend/cuda/products/few_rows_arguments.cuh"

// How the kernels of few_rows_wgmma.cu and e4m3_products.cu bring weights and x: rings of slots in
// shared memory, filled by a warp each.
namespace dendrite::cuda::few_rows {

#ifdef DENDRITE_SM90A

/// Slots in shared memory, each with a barrier that says it is full and one that says it is free.
struct Ring {
  std::uint32_t data;
  int slot_bytes;
  std::uint32_t full;
  std::uint32_t free;

  __device__ std::uint32_t slot(int i) const { return data + i * slot_bytes; }
  /// multipliers: warps that leave a slot.
  __device__ void init(int i, int multipliers) const {
    init_barrier(full + 8 * i, 1);
    init_barrier(free + 8 * i, multipliers);
    publish_barriers();
  }
};

/// A place in a ring, and the parity of its barriers' phase.
struct Cursor {
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

struct Rings {
  Ring x;
  std::uint32_t scales;  // of x, where it has some: [chunks, chunk_tiles, tile_rows] in f32
  int scale_bytes;       // of a slot of x
  Ring weights;          // behind those, whose last tile is read beyond its end

  __device__ Rings(const Arguments& args, std::uint32_t base, int outputs, bool has_scales) {
    const std::uint32_t data = base + kBarrierBytes;
    const int x_rows = args.chunk_tiles * args.tile_rows;
    x = {data, x_rows * kTileRowBytes, base, base + 8 * kMostSlots};
    scales = data + args.chunks * x.slot_bytes;
    scale_bytes = has_scales ? x_rows * static_cast<int>(sizeof(float)) : 0;
    const int all = (args.chunks * scale_bytes + kSwizzleBytes - 1) / kSwizzleBytes * kSwizzleBytes;
    weights = {scales + all, args.stage_tiles * outputs * kTileRowBytes, base + 16 * kMostSlots,
               base + 24 * kMostSlots};
  }

  /// The memory behind all.
  __device__ std::uint32_t behind(const Arguments& args) const { return weights.slot(args.stages); }
  /// Of a slot of x.
  __device__ std::uint32_t scales_of(int slot) const { return scales + slot * scale_bytes; }
};

/// All weights of this block, stage by stage of kUnits units at once, which follow each other in a
/// slot.
template <int kOutputs, bool kHeads, int kUnits>
class WeightStream {
 public:
  __device__ WeightStream(const Arguments& args, const CUtensorMap& map, const Ring& ring)
      : args_(args),
        map_(map),
        ring_(ring),
        once_(args.bands == 1),
        walk_(args),
        cursor_{args.stages} {}

  /// What may be on its way before run().
  __device__ void begin() {
    for (int i = 0; i < args_.under_way && !walk_.done(); ++i) fetch();
  }
  /// The rest of the ring as copies are done, then into slots as they become free.
  __device__ void run() {
    for (int i = args_.under_way; !walk_.done(); ++i) {
      if (i < args_.stages) {
        wait_barrier(ring_.full + 8 * (i - args_.under_way), 0);
      } else {
        wait_barrier(ring_.free + 8 * cursor_.slot, cursor_.parity ^ 1);
      }
      fetch();
    }
  }

 private:
  /// Into the next slot.
  __device__ void fetch() {
    const std::uint32_t full = ring_.full + 8 * cursor_.slot;
    arrive_for_bytes(full, ring_.slot_bytes);
#pragma unroll
    for (int i = 0; i < kUnits; ++i) {
      fetch_unit(ring_.slot(cursor_.slot) + i * args_.stage_tiles * kOutputs * kTileRowBytes,
                 walk_.unit() * kUnits + i, full);
    }
    cursor_.next();
    tile_ += args_.stage_tiles;
    if (tile_ >= args_.tiles) {
      tile_ = 0;
      walk_.next();
    }
  }
  __device__ void fetch_unit(std::uint32_t target, int unit, std::uint32_t full) const {
    if constexpr (kHeads) {
      const FirstPair first(args_, unit);
      copy_pairs_once(target, map_, first.pair, first.head, tile_, full);
    } else if (args_.ffn == 0) {
      copy(target, unit * kOutputs, tile_, full);
    } else {  // a tile's gates, then its ups
      constexpr int kHalf = kOutputs / 2;
      for (int i = 0; i < args_.stage_tiles; ++i) {
        copy(target, unit * kHalf, tile_ + i, full);
        target += kHalf * kTileRowBytes;
        copy(target, args_.ffn + unit * kHalf, tile_ + i, full);
        target += kHalf * kTileRowBytes;
      }
    }
  }
  __device__ void copy(std::uint32_t target, int row, int tile, std::uint32_t barrier) const {
    if (once_) {
      copy_tiles_once(target, map_, row, tile, barrier);
    } else {
      copy_tiles(target, map_, row, tile, barrier);
    }
  }

  const Arguments& args_;
  const CUtensorMap& map_;
  const Ring& ring_;
  bool once_;  // nobody else reads them
  Walk walk_;
  int tile_ = 0;
  Cursor cursor_;
};

/// Copies the scales of some rows and tiles of x.
__device__ inline void copy_scales(const Arguments& args, std::uint32_t target, int row, int tile,
                                   int tiles, int rows, std::uint32_t barrier) {
  const float* from = args.x_scales + std::int64_t{tile} * args.x_scale_rows + row;
  if (rows == args.x_scale_rows && rows == args.tile_rows) {  // one behind the other
    copy_bytes(target, from, tiles * rows * sizeof(float), barrier);
    return;
  }
  for (int i = 0; i < tiles; ++i) {
    copy_bytes(target, from, rows * sizeof(float), barrier);
    target += args.tile_rows * sizeof(float);
    from += args.x_scale_rows;
  }
}

/// A band of x for each unit, and its scales.
template <bool kScales>
__device__ inline void stream_x(const Arguments& args, const CUtensorMap& map, const Rings& rings) {
  const Ring& ring = rings.x;
  Cursor cursor{args.chunks};
  int unused = args.chunks;
  for (Walk walk(args); !walk.done(); walk.next()) {
    const int row = walk.first_row();
    for (int tile = 0; tile < args.tiles; tile += args.chunk_tiles) {
      if (unused > 0) {
        --unused;
      } else {
        wait_barrier(ring.free + 8 * cursor.slot, cursor.parity ^ 1);
      }
      const std::uint32_t full = ring.full + 8 * cursor.slot;
      const int tiles = min(args.chunk_tiles, args.tiles - tile);
      const int rows = min(args.tile_rows, args.x_scale_rows - row);
      const int scale_bytes = kScales ? tiles * rows * static_cast<int>(sizeof(float)) : 0;
      arrive_for_bytes(full, ring.slot_bytes + scale_bytes);
      copy_tiles(ring.slot(cursor.slot), map, row, tile, full);
      if constexpr (kScales)
        copy_scales(args, rings.scales_of(cursor.slot), row, tile, tiles, rows, full);
      cursor.next();
    }
  }
}

#endif  // DENDRITE_SM90A

}  // namespace dendrite::cuda::few_rows
