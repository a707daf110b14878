#pragma once

#include <cuda.h>

#include <cstdint>

// Instructions of compute capability 9.0 and later: asynchronous copies and barriers in shared
// memory, whose addresses these are. Products of a warpgroup are of 9.0 alone (sm_90a): where code
// is compiled for it DENDRITE_SM90A is defined. Elsewhere none of this may be called.
namespace dendrite::cuda {

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define DENDRITE_SM90A 1
#endif

__device__ inline void init_barrier(std::uint32_t barrier, std::uint32_t arrivals) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(arrivals) : "memory");
}
/// Makes initialised barriers visible to copies.
__device__ inline void publish_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
}
/// Arrives once and says how many bytes of copies the phase waits for.
__device__ inline void arrive_for_bytes(std::uint32_t barrier, std::uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
__device__ inline void arrive(std::uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
/// Waits for the barrier's phase of this parity.
__device__ inline void wait_barrier(std::uint32_t barrier, std::uint32_t parity) {
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared::cta.b64 done, [%0], %1;\n"
      "@!done bra again;\n"
      "}" ::"r"(barrier),
      "r"(parity)
      : "memory");
}
/// True in one thread of a whole warp, which is always the same. What it does keeps its operands
/// in uniform registers, where `lane == 0` takes a loop over lanes.
__device__ inline bool elect_one() {
  std::uint32_t elected;
  asm volatile(
      "{\n"
      ".reg .pred one;\n"
      "elect.sync _|one, 0xffffffff;\n"
      "selp.u32 %0, 1, 0, one;\n"
      "}"
      : "=r"(elected));
  return elected != 0;
}
/// Whether it is over, without waiting.
__device__ inline bool test_barrier(std::uint32_t barrier, std::uint32_t parity) {
  std::uint32_t done;
  asm volatile(
      "{\n"
      ".reg .pred done;\n"
      "mbarrier.test_wait.parity.shared::cta.b64 done, [%1], %2;\n"
      "selp.u32 %0, 1, 0, done;\n"
      "}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}

/// A box of tiles of 64 columns of a map's matrix, from `row` and `tile` on; zeros behind its end.
/// The bytes count for `barrier`.
__device__ inline void copy_tiles(std::uint32_t target, const CUtensorMap& map, int row, int tile,
                                  std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes "
      "[%0], [%1, {%2, %3, %4}], [%5];" ::"r"(target),
      "l"(&map), "r"(0), "r"(row), "r"(tile), "r"(barrier)
      : "memory");
}
/// For copies of what is read once: the cache lets go of it before anything else. (Hints of any
/// other kind, that of a plain copy's too, made products slower on an H200.)
__device__ inline std::uint64_t evict_first() {
  std::uint64_t policy;
  asm volatile("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
  return policy;
}
/// Bytes that follow each other, whole sixteens on both sides.
__device__ inline void copy_bytes(std::uint32_t target, const void* from, std::uint32_t bytes,
                                  std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(target),
      "l"(from), "r"(bytes), "r"(barrier)
      : "memory");
}
__device__ inline void copy_bytes_once(std::uint32_t target, const void* from, std::uint32_t bytes,
                                       std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
      "[%0], [%1], %2, [%3], %4;" ::"r"(target),
      "l"(from), "r"(bytes), "r"(barrier), "l"(evict_first())
      : "memory");
}
__device__ inline void copy_tiles_once(std::uint32_t target, const CUtensorMap& map, int row,
                                       int tile, std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %3, %4}], [%5], %6;" ::"r"(target),
      "l"(&map), "r"(0), "r"(row), "r"(tile), "r"(barrier), "l"(evict_first())
      : "memory");
}
/// The same of a map of describe_pairs().
__device__ inline void copy_pairs_once(std::uint32_t target, const CUtensorMap& map, int pair,
                                       int head, int tile, std::uint32_t barrier) {
  asm volatile(
      "cp.async.bulk.tensor.5d.shared::cluster.global.mbarrier::complete_tx::bytes"
      ".L2::cache_hint [%0], [%1, {%2, %2, %3, %4, %5}], [%6], %7;" ::"r"(target),
      "l"(&map), "r"(0), "r"(pair), "r"(head), "r"(tile), "r"(barrier), "l"(evict_first())
      : "memory");
}
__device__ inline void prefetch_map(const CUtensorMap& map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(&map) : "memory");
}

/// The low half of the descriptor of a tile of rows of 64 bf16 (128 bytes, swizzled as the copies
/// do), from `address` on; 2 more for every 16 columns. The high half is the same for all of them:
/// 8 rows begin 1024 bytes behind the 8 before.
__device__ inline std::uint32_t tile_descriptor(std::uint32_t address) {
  return std::uint32_t{1} << 16 | address >> 4;
}

__device__ inline void begin_products() {
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
}
__device__ inline void commit_products() {
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}
template <int kPending>
__device__ inline void wait_products() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

/// Registers a thread has from here on, for all warps of a warpgroup.
template <int kCount>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kCount));
}
template <int kCount>
__device__ inline void leave_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kCount));
}

/// After wait_products<0>(): sums are read no earlier.
template <int kCount>
__device__ inline void take_sums(float (&c)[kCount]) {
#pragma unroll
  for (int i = 0; i < kCount; ++i) asm volatile("" : "+f"(c[i])::"memory");
}

}  // namespace dendrite::cuda
