#pragma once

#include <cstdint>

#include "backend/cuda/base/e4m3.cuh"
#include "core/kv_format.h"

// How the attention kernels bring K and V in FP8: codes come to shared memory into the places of
// the bf16 values that they become. A row of a chunk is 64 dims, 128 bytes in swizzled pieces of
// 16: the codes of dims 16 i to 16 i + 15 come to where the piece of the first eight of these
// belongs, and the thread that copied them widens them to that piece and the one beside it. So no
// other memory is needed, and no thread waits for another. What is multiplied are the bits that
// pages in bf16 would have.
namespace dendrite::cuda {

/// Where in a row of a chunk a copy of 16 bytes belongs: of 8 values, or 16 codes.
template <KvFormat kFormat>
__device__ inline std::uint32_t piece_place(std::uint32_t piece, std::uint32_t row) {
  if constexpr (kFormat == KvFormat::kFP8) piece *= 2;
  return (piece ^ row % 8) * 16;
}

/// Whether a thread copies the scales of its row and the three behind it: those of the rows of a
/// warp, which are eight neighbours from a multiple of 8 on, four threads each.
__device__ inline bool copies_scales(int row) {
  return threadIdx.x % 4 == 0 && row % 4 == 0;
}
/// Four scales to shared memory, in the background; zeros when `take` is false (nothing is read).
__device__ inline void copy_scales(std::uint32_t shared, const void* global, bool take) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;" ::"r"(shared), "l"(global),
               "r"(take ? 4 : 0)
               : "memory");
}
/// e4m3_pair_factor() of a scale in shared memory.
__device__ inline std::uint32_t load_pair_factor(std::uint32_t shared) {
  std::uint32_t scale;
  asm volatile("ld.shared.u8 %0, [%1];" : "=r"(scale) : "r"(shared) : "memory");
  return e4m3_pair_factor(scale);
}

}  // namespace dendrite::cuda
