#pragma once

#include "backend/cuda/products/packed_kernel.cuh"

// Products of 65 to 128 rows with packed weights on compute capability 9.0: a warpgroup multiplies
// its warps' decoded tiles, 64 outputs, with x as it lies in shared memory. The order of sums is
// that of packed_kernel.cuh.
namespace dendrite::cuda::packed {

/// c += a b^T: a [64, 16], of each warp 16 rows as an m16n8k16 product has its left operand; b
/// [128, 16]: the low half of a tile's descriptor. Sums of b's rows 8 j + 2t and
/// 8 j + 2t + 1 are c[4 j] and c[4 j + 1] for a's row g, the next two for row g + 8.
__device__ inline void multiply_add(float (&c)[64], const std::uint32_t (&a)[4], std::uint32_t b) {
  // clang-format off
  asm volatile(
      "{\n.reg .b64 b;\nmov.b64 b, {%68, 0x40000040};\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
      "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
      "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
      "{%64, %65, %66, %67}, b, 1, 1, 1, 0;\n}"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]),
        "+f"(c[6]), "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]),
        "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]), "+f"(c[16]), "+f"(c[17]),
        "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),
        "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]),
        "+f"(c[30]), "+f"(c[31]), "+f"(c[32]), "+f"(c[33]), "+f"(c[34]), "+f"(c[35]),
        "+f"(c[36]), "+f"(c[37]), "+f"(c[38]), "+f"(c[39]), "+f"(c[40]), "+f"(c[41]),
        "+f"(c[42]), "+f"(c[43]), "+f"(c[44]), "+f"(c[45]), "+f"(c[46]), "+f"(c[47]),
        "+f"(c[48]), "+f"(c[49]), "+f"(c[50]), "+f"(c[51]), "+f"(c[52]), "+f"(c[53]),
        "+f"(c[54]), "+f"(c[55]), "+f"(c[56]), "+f"(c[57]), "+f"(c[58]), "+f"(c[59]),
        "+f"(c[60]), "+f"(c[61]), "+f"(c[62]), "+f"(c[63])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));
  // clang-format on
}

/// Rows of x, also those that are not there.
constexpr int kWideRows = 128;

/// What becomes of a warp's sums. What an epilogue reads is read for several eights of rows before
/// anything is stored: reads behind stores would wait for each other.
class WideSink {
 public:
  using Sums = float[kWideRows / 2];

  __device__ WideSink(const Arguments& args, int lane) : args_(args), lane_(lane) {}

  __device__ void put(int unit, Sums& sums) const {
#pragma unroll
    for (int eight = 0; eight < kWideRows / 8; eight += kAtOnce) {
      if (args_.epilogue == Epilogue::kRope) {
        put_heads(unit, eight, sums + 4 * eight);
      } else if (args_.epilogue == Epilogue::kSiluMul) {
        put_silus(unit, eight, sums + 4 * eight);
      } else {
        put_sums(unit, eight, sums + 4 * eight);
      }
    }
  }

 private:
  static constexpr int kAtOnce = 8;

  __device__ int row_of(int eight) const {
    return eight * 8 + lane_ % 4 * 2;
  }

  __device__ void put_silus(int unit, int eight, const float* sums) const {
#pragma unroll
    for (int i = 0; i < 2 * kAtOnce; ++i) {
      const float* const four = sums + i / 2 * 4 + i % 2;
      few_rows::store_silu(args_, row_of(eight + i / 2) + i % 2, unit * 8 + lane_ / 4, four[0],
                           four[2]);
    }
  }

  __device__ void put_sums(int unit, int eight, const float* sums) const {
    const auto column_of = [&](int i) { return unit * 16 + i % 4 / 2 * 8 + lane_ / 4; };
    const auto exists = [&](int i) {
      return row_of(eight + i / 4) + i % 2 < args_.rows && column_of(i) < args_.outputs;
    };
    const auto target = [&](int i) {
      return few_rows::target_of(args_, row_of(eight + i / 4) + i % 2, column_of(i));
    };
    float old[4 * kAtOnce] = {};
#pragma unroll
    for (int i = 0; i < 4 * kAtOnce; ++i) {
      if (args_.epilogue == Epilogue::kAdd && exists(i)) old[i] = __ldcg(target(i));
    }
#pragma unroll
    for (int i = 0; i < 4 * kAtOnce; ++i) {
      if (!exists(i)) continue;
      float sum = sums[i];
      if (args_.bias != nullptr) sum += args_.bias[column_of(i)];
      *target(i) = args_.epilogue == Epilogue::kAdd ? sum + old[i] : sum;
    }
  }

  __device__ void put_heads(int unit, int eight, float* sums) const {
    const few_rows::FirstPair first(args_, unit);
    const HeadPair pair{first.head, first.pair + lane_ / 4};
    float2 angles[kAtOnce][2];
    std::int64_t slots[kAtOnce][2];
#pragma unroll
    for (int i = 0; i < 2 * kAtOnce; ++i) {
      const int row = row_of(eight + i / 2) + i % 2;
      const bool exists = row < args_.rows;
      angles[i / 2][i % 2] = exists ? pair.load_angle(args_.rope, row) : make_float2(0, 0);
      slots[i / 2][i % 2] = exists ? args_.rope.slots[row] : -1;
    }
    const bool stores = !pair.is_query(args_.rope);
    const std::int32_t extra_count = stores ? *args_.rope.extra_count : 0;
#pragma unroll
    for (int i = 0; i < 2 * kAtOnce; ++i) {
      const int row = row_of(eight + i / 2) + i % 2;
      float& a = sums[i / 2 * 4 + i % 2];
      float& b = sums[i / 2 * 4 + i % 2 + 2];
      float* const queries = row < args_.rows ? few_rows::target_of(args_, row, 0) : nullptr;
      pair.put(args_.rope, args_.bias, angles[i / 2][i % 2], slots[i / 2][i % 2], queries, a, b);
      for (std::int32_t e = 0; e < extra_count; ++e) {
        const ExtraStore extra = args_.rope.extra_stores[e];
        if (extra.row == row) pair.store(args_.rope, extra.slot, a, b);
      }
    }
  }

  const Arguments& args_;
  int lane_;
};

constexpr int kMostWideWarps = 8;

/// Warps beyond the last unit do its work once more and keep nothing: a warpgroup multiplies as
/// one.
template <class Q>
__global__ void __launch_bounds__((kMostWideWarps + 1) * 32, 1)
    packed_wide_kernel(const __grid_constant__ CUtensorMap x,
                       const __grid_constant__ Arguments args) {
#ifdef DENDRITE_SM90A
  extern __shared__ __align__(1024) std::uint8_t memory[];
  using Stream = TileStream<Q, 2>;
  const Places places(memory, args, args.slots * Stream::kSlotBytes);
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  let_next_begin();
  if (warp == args.warps) {
    bring_x(args, x, places, lane);
    return;
  }
  Stream stream(args, places, warp);
  stream.begin(lane);
  __syncthreads();
  wait_for_earlier();

  const WideSink sink(args, lane);
  const int rounds = rounds_of(args);
  const std::uint32_t barriers = places.full(warp, 0);
  const std::uint8_t* const ring = memory + places.ring(warp, args.slots * Stream::kSlotBytes);
  SlotCursor slot{args.slots};
  SlotCursor piece{args.pieces};
  for (int round = 0; round < rounds; ++round) {
    WideSink::Sums sums = {};
#pragma unroll 1
    for (int tile = 0; tile < args.tiles_k; ++tile) {
      wait_barrier(places.x_full(piece.slot), piece.parity);
      wait_barrier(barriers + 8 * slot.slot, slot.parity);
      const std::uint8_t* const data = ring + slot.slot * Stream::kSlotBytes;
      const LaneTile<Q> first(data, lane, args.less);
      const LaneTile<Q> second(data + Q::kTileBytes, lane, args.less);
      const std::uint32_t x_tile = places.base + places.x(piece.slot);
      std::uint32_t a[2][4];
#pragma unroll
      for (int step = 0; step < PackedLayout::kColumns / 16; ++step) {
        const uint2 upper = first.step(step);
        const uint2 lower = second.step(step);
        a[step % 2][0] = upper.x;
        a[step % 2][1] = lower.x;
        a[step % 2][2] = upper.y;
        a[step % 2][3] = lower.y;
        begin_products();
        multiply_add(sums, a[step % 2],
                     tile_descriptor(x_tile + step / 4 * kWideRows * few_rows::kTileRowBytes) +
                         step % 4 * 2);
        commit_products();
        wait_products<1>();
      }
      wait_products<0>();
      __syncwarp();
      if (lane == 0) {
        arrive(places.x_free(piece.slot));
        stream.fetch();
      }
      piece.next();
      slot.next();
    }
    take_sums(sums);
    const int unit = unit_of(args, round, warp);
    if (unit < args.units) sink.put(unit, sums);
  }
#endif
}

}  // namespace dendrite::cuda::packed
