#pragma once

#include "backend/cuda/products/few_rows_epilogue.cuh"
#include "backend/cuda/products/packed_decode.cuh"
#include "backend/cuda/products/packed_stream.cuh"

// Products of more than 64 rows with packed weights on compute capability 9.0: a warpgroup
// multiplies its warps' decoded tiles, 64 outputs, with a band of 64 or 128 rows of x as it lies in
// shared memory. The order of sums is that of packed_kernel.cuh.
namespace dendrite::cuda::packed {

/// c += a b^T: a [64, 16], of each warp 16 rows as an m16n8k16 product has its left operand; b
/// [64 or 128, 16]: the low half of a tile's descriptor. Sums of b's rows 8 j + 2t and
/// 8 j + 2t + 1 are c[4 j] and c[4 j + 1] for a's row g, the next two for row g + 8.
__device__ inline void multiply_add(float (&c)[32], const std::uint32_t (&a)[4], std::uint32_t b) {
  // clang-format off
  asm volatile(
      "{\n.reg .b64 b;\nmov.b64 b, {%36, 0x40000040};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 {"
      "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
      "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, "
      "{%32, %33, %34, %35}, b, 1, 1, 1, 0;\n}"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]), "+f"(c[4]), "+f"(c[5]),
        "+f"(c[6]), "+f"(c[7]), "+f"(c[8]), "+f"(c[9]), "+f"(c[10]), "+f"(c[11]),
        "+f"(c[12]), "+f"(c[13]), "+f"(c[14]), "+f"(c[15]), "+f"(c[16]), "+f"(c[17]),
        "+f"(c[18]), "+f"(c[19]), "+f"(c[20]), "+f"(c[21]), "+f"(c[22]), "+f"(c[23]),
        "+f"(c[24]), "+f"(c[25]), "+f"(c[26]), "+f"(c[27]), "+f"(c[28]), "+f"(c[29]),
        "+f"(c[30]), "+f"(c[31])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b));
  // clang-format on
}

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

/// What becomes of a warp's sums. What an epilogue reads is read for several eights of rows before
/// anything is stored: reads behind stores would wait for each other.
template <int kRows>
class WideSink {
 public:
  __device__ WideSink(const Arguments& args, int lane)
      : args_(args), lane_(lane), first_row_(static_cast<int>(blockIdx.y) * kRows) {}

  __device__ void put(int unit, float (&sums)[kRows / 2]) const {
#pragma unroll
    for (int eight = 0; eight < kRows / 8; eight += kAtOnce) {
      if (args_.epilogue == Epilogue::kSiluMul) {
        put_silus(unit, eight, sums + 4 * eight);
      } else {
        put_sums(unit, eight, sums + 4 * eight);
      }
    }
  }

 private:
  static constexpr int kAtOnce = 8;

  __device__ int row_of(int eight) const {
    return first_row_ + eight * 8 + lane_ % 4 * 2;
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

  const Arguments& args_;
  int lane_;
  int first_row_;
};

/// Warps of a block that multiply, at most, by rows of its band, and how many registers they take
/// from the warpgroup that brings x.
constexpr int most_wide_warps(int rows) {
  return rows == 64 ? 12 : 8;
}
template <int kRows>
constexpr int kWideRegisters = kRows == 64 ? 160 : 232;
constexpr int kBringRegisters = 24;
constexpr int kBringThreads = 128;  // of which a warp works

/// Both tiles of 8 rows of a warp, as left operands.
template <class Q>
class WideOperands {
 public:
  static constexpr int kSteps = PackedLayout::kColumns / 16;

  __device__ void load(const std::uint8_t* data, int lane, std::uint32_t less) {
    upper_ = LaneTile<Q>(data, lane, less);
    lower_ = LaneTile<Q>(data + Q::kTileBytes, lane, less);
  }
  __device__ void decode() {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) decode(a_[step], step);
  }
  /// Begins sums += x W^T of what was decoded.
  template <int kRows>
  __device__ void multiply(float (&sums)[kRows / 2], std::uint32_t x) const {
    begin_products();
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      multiply_add(sums, a_[step], x_step<kRows>(x, step));
    }
    commit_products();
  }
  /// The same, decoding a step beside the products of the one before.
  template <int kRows>
  __device__ void decode_and_multiply(float (&sums)[kRows / 2], std::uint32_t x) {
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      decode(a_[step % 2], step);
      begin_products();
      multiply_add(sums, a_[step % 2], x_step<kRows>(x, step));
      commit_products();
      wait_products<1>();
    }
  }

 private:
  template <int kRows>
  static __device__ std::uint32_t x_step(std::uint32_t x, int step) {
    return tile_descriptor(x + step / 4 * kRows * few_rows::kTileRowBytes) + step % 4 * 2;
  }
  __device__ void decode(std::uint32_t (&a)[4], int step) const {
    const uint2 upper = upper_.step(step);
    const uint2 lower = lower_.step(step);
    a[0] = upper.x;
    a[1] = lower.x;
    a[2] = upper.y;
    a[3] = lower.y;
  }

  LaneTile<Q> upper_;
  LaneTile<Q> lower_;
  std::uint32_t a_[kSteps][4];
};

/// Warps beyond the last unit do its work once more and keep nothing: a warpgroup multiplies as
/// one. With 64 rows tiles are decoded before their turn; with 128 sums leave no registers for
/// that, a tile is decoded beside its products, and teams are of one warpgroup.
template <class Q, int kRows>
__global__ void __launch_bounds__(most_wide_warps(kRows) * 32 + kBringThreads, 1)
    packed_wide_kernel(const __grid_constant__ CUtensorMap x,
                       const __grid_constant__ Arguments args) {
#ifdef DENDRITE_SM90A
  extern __shared__ __align__(1024) std::uint8_t memory[];
  constexpr bool kEarly = kRows == 64;
  using Stream = TileStream<Q, 2, 4, !kEarly>;
  const Places places(memory, args, args.slots * Stream::kSlotBytes);
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x) / 32, 0);
  const int lane = static_cast<int>(threadIdx.x) % 32;
  let_next_begin();
  if (warp >= args.warps) {
    asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kBringRegisters));
    if (warp == args.warps) bring_x<4>(args, x, places, lane);
    return;
  }
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kWideRegisters<kRows>));
  const Share<4, !kEarly> share(args, warp);
  Stream stream(args, places, share, warp);
  Relay<kRows / 2, 4, !kEarly> relay(places, share, warp, lane);
  stream.begin(lane);
  __syncthreads();
  wait_for_earlier();

  const WideSink<kRows> sink(args, lane);
  const std::uint32_t barriers = places.full(warp, 0);
  const std::uint8_t* const ring = memory + places.ring(warp, args.slots * Stream::kSlotBytes);
  SlotCursor slot{args.slots};
  SlotCursor piece{args.pieces};
  piece.next(share.member);
  float sums[kRows / 2];
  WideOperands<Q> weights;
  Way way(share);
  const auto load = [&] {
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
    wait_barrier(places.x_full(piece.slot), piece.parity);
    relay.take(sums, way.tile == 0);
    const std::uint32_t x_piece = places.base + places.x(piece.slot);
    if constexpr (kEarly) {
      weights.template multiply<kRows>(sums, x_piece);
    } else {
      weights.template decode_and_multiply<kRows>(sums, x_piece);
    }
    wait_products<0>();
    take_sums(sums);
    const bool whole = way.tile + 1 == args.tiles_k;
    relay.pass(sums, whole, lane);
    if constexpr (!kEarly) refill();
    __syncwarp();
    if (lane == 0) arrive(places.x_free(piece.slot));
    piece.next(share.team);
    const int unit = way.unit;
    if (whole && unit < args.units) sink.put(unit, sums);
    if (way.next(share, args.tiles_k) && way.rounds <= 0) break;
    load();  // here, so that it is decoded before the turn
  }
#endif
}

}  // namespace dendrite::cuda::packed
