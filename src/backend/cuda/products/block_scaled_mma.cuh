#pragma once

#include <cstdint>

#include "backend/cuda/products/block_scaled_emulation.h"

// Products of block-scaled operands by the tensor cores of compute capability 12.x. Their
// instructions exist for exact targets and that family (sm_120a, sm_121a, sm_120f); everywhere else
// the same fragments are multiplied by ordinary arithmetic.
#if defined(__CUDA_ARCH_FEAT_SM120_ALL) || defined(__CUDA_ARCH_FEAT_SM121_ALL)
#define DENDRITE_BLOCK_SCALED_MMA
#elif defined(__CUDA_ARCH_FAMILY_SPECIFIC__)
#if __CUDA_ARCH_FAMILY_SPECIFIC__ == 1200
#define DENDRITE_BLOCK_SCALED_MMA
#endif
#endif

namespace dendrite::cuda {

#ifdef DENDRITE_BLOCK_SCALED_MMA
constexpr bool kHasBlockScaledMma = true;
#else
constexpr bool kHasBlockScaledMma = false;

/// What the lanes of this warp hand in. All ask for the same `reg`, each of a lane of its own.
struct WarpLanes {
  uint4 a;
  uint2 b;
  std::uint32_t a_scales;
  std::uint32_t b_scales;

  __device__ std::uint32_t left(int lane, int reg) const {
    const uint2 half = reg / 2 == 0 ? make_uint2(a.x, a.y) : make_uint2(a.z, a.w);
    return from(reg % 2 == 0 ? half.x : half.y, lane);
  }
  __device__ std::uint32_t right(int lane, int reg) const {
    return from(reg == 0 ? b.x : b.y, lane);
  }
  __device__ std::uint32_t left_scales(int lane) const { return from(a_scales, lane); }
  __device__ std::uint32_t right_scales(int lane) const { return from(b_scales, lane); }

 private:
  static __device__ std::uint32_t from(std::uint32_t word, int lane) {
    return __shfl_sync(0xffffffffu, word, lane);
  }
};

/// Not inlined: it would be most of what there is to compile.
template <BlockFormat kFormat, int kByte>
__device__ __noinline__ float4 emulated_multiply_add(float4 c, WarpLanes lanes) {
  float sums[4] = {c.x, c.y, c.z, c.w};
  emulate_multiply_add<kFormat, kByte>(sums, static_cast<int>(threadIdx.x) % 32, lanes);
  return make_float4(sums[0], sums[1], sums[2], sums[3]);
}
#endif

/// c += (a a_scales) (b b_scales) for a [16, step], b [8, step] as rows of weights and c [16, 8] of
/// f32, in the fragments of block_scaled.h. An element of c depends on its row of a and its row of
/// b alone. kByte: of scale words, the byte that MXFP8's step takes; NVFP4's takes all four.
template <BlockFormat kFormat, int kByte>
__device__ inline void block_scaled_multiply_add(float (&c)[4], const std::uint32_t (&a)[4],
                                                 const std::uint32_t (&b)[2],
                                                 std::uint32_t a_scales, std::uint32_t b_scales) {
#ifdef DENDRITE_BLOCK_SCALED_MMA
  if constexpr (kFormat == BlockFormat::kMxfp8) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.kind::mxf8f6f4.block_scale.scale_vec::1X.f32.e4m3.e4m3."
        "f32.ue8m0 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3}, "
        "%10, {%11, %12}, %13, {%11, %12};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(a_scales),
          "n"(kByte), "n"(0), "r"(b_scales));
  } else {
    static_assert(kByte == 0);
    asm volatile(
        "mma.sync.aligned.m16n8k64.row.col.kind::mxf4nvf4.block_scale.scale_vec::4X.f32.e2m1.e2m1."
        "f32.ue4m3 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3}, "
        "%10, {%11, %11}, %12, {%11, %11};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]), "r"(a_scales), "n"(0),
          "r"(b_scales));
  }
#else
  const WarpLanes lanes{make_uint4(a[0], a[1], a[2], a[3]), make_uint2(b[0], b[1]), a_scales,
                        b_scales};
  const float4 sums =
      emulated_multiply_add<kFormat, kByte>(make_float4(c[0], c[1], c[2], c[3]), lanes);
  c[0] = sums.x;
  c[1] = sums.y;
  c[2] = sums.z;
  c[3] = sums.w;
#endif
}

}  // namespace dendrite::cuda
