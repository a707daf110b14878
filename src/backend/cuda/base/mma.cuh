#pragma once

#include <cstdint>

// The instructions that the tensor-core kernels are made of, for compute capability 8.0 and later.
namespace dendrite::cuda {

__device__ inline std::uint32_t shared_address(const void* pointer) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(pointer));
}

/// 16 bytes to shared memory, in the background; zeros when `take` is false (nothing is read).
__device__ inline void copy_async(std::uint32_t shared, const void* global, bool take) {
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(take ? 16 : 0)
               : "memory");
}
/// The same by way of the L1 cache, for what other blocks of a multiprocessor copy, too.
__device__ inline void copy_async_cached(std::uint32_t shared, const void* global, bool take) {
  asm volatile("cp.async.ca.shared.global.L2::128B [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(take ? 16 : 0)
               : "memory");
}
/// A value of 4, 8 or 16 bytes.
template <typename T>
__device__ inline void copy_async(T* shared, const T* global) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(shared_address(shared)),
               "l"(global), "n"(sizeof(T))
               : "memory");
}
/// Ends a group of copies; may be empty.
__device__ inline void commit_copies() {
  asm volatile("cp.async.commit_group;" ::: "memory");
}
/// Waits until all but the latest `kPending` groups of this thread are there.
template <int kPending>
__device__ inline void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

__device__ inline uint4 load_shared(std::uint32_t shared) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(shared)
               : "memory");
  return v;
}
/// Four 8x8 matrices of 16-bit values; lane i gives the address of row i % 8 of matrix i / 8.
__device__ inline void load_matrices(std::uint32_t (&out)[4], std::uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared)
               : "memory");
}
/// The same, each matrix transposed.
__device__ inline void load_matrices_transposed(std::uint32_t (&out)[4], std::uint32_t shared) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(out[0]), "=r"(out[1]), "=r"(out[2]), "=r"(out[3])
               : "r"(shared)
               : "memory");
}

/// c += a b for a [16, 16], b [16, 8] of bf16 and c [16, 8] of f32. An element of c depends on its
/// row of a and its column of b alone.
__device__ inline void multiply_add(float (&c)[4], const std::uint32_t (&a)[4], std::uint32_t b0,
                                    std::uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, "
      "{%8, %9}, {%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

/// Two values rounded to bf16, the first in the low half.
__device__ inline std::uint32_t pack_bf16(float low, float high) {
  std::uint32_t packed;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(packed) : "f"(high), "f"(low));
  return packed;
}

/// 2^x; exact at 0, 0 at -inf.
__device__ inline float power_of_two(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace dendrite::cuda
