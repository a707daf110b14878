// The avx512_bf16 path: AVX-512 F, BW, VL, DQ and the dot products of bf16 and of bytes (VNNI).
#include "backend/cpu/kernels.h"

#include <immintrin.h>

#include <utility>

namespace dendrite::cpu {
namespace {

#define DENDRITE_DOT_BF16 1
#define DENDRITE_OTHER_FORMATS avx512_kernels
// Each builds on the ones before.
// clang-format off
#include "backend/cpu/isa/common.inl"
#include "backend/cpu/isa/vector_avx512.inl"
#include "backend/cpu/isa/rounding_avx512_bf16.inl"
#include "backend/cpu/isa/path.inl"
// clang-format on

}  // namespace

const Kernels& avx512_bf16_kernels() {
  static constexpr Kernels kernels = kernels_of_path("avx512_bf16", 100);
  return kernels;
}

}  // namespace dendrite::cpu
