// The avx2 path: AVX2, FMA, F16C.
#include "backend/cpu/kernels.h"

#include <immintrin.h>

#include <utility>

namespace dendrite::cpu {
namespace {

// Each builds on the ones before.
// clang-format off
#include "backend/cpu/isa/common.inl"
#include "backend/cpu/isa/vector_avx2.inl"
#include "backend/cpu/isa/path.inl"
// clang-format on

}  // namespace

const Kernels& avx2_kernels() {
  static constexpr Kernels kernels = kernels_of_path("avx2", 70);
  return kernels;
}

}  // namespace dendrite::cpu
