// The avx512 path: AVX-512 F, BW, VL, DQ.
#include "backend/cpu/kernels.h"

#include <immintrin.h>

#include <utility>

namespace dendrite::cpu {
namespace {

// Each builds on the ones before.
// clang-format off
#include "backend/cpu/isa/common.inl"
#include "backend/cpu/isa/vector_avx512.inl"
#include "backend/cpu/isa/path.inl"
// clang-format on

}  // namespace

const Kernels& avx512_kernels() {
  static constexpr Kernels kernels = kernels_of_path("avx512", 150);
  return kernels;
}

}  // namespace dendrite::cpu
