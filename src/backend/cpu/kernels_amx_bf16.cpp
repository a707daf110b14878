// The amx_bf16 path: products of bf16 by AMX tiles, all else by AVX-512 F, BW, VL, DQ and BF16.
#include "backend/cpu/kernels.h"

#include <immintrin.h>

#include <utility>

namespace dendrite::cpu {
namespace {

#define DENDRITE_TILES 1
#define DENDRITE_OTHER_FORMATS avx512_kernels
#define DENDRITE_OTHER_GROUPS avx512_bf16_kernels  // whose dot instruction for bytes it has, too
// Each builds on the ones before.
// clang-format off
#include "backend/cpu/isa/common.inl"
#include "backend/cpu/isa/vector_avx512.inl"
#include "backend/cpu/isa/rounding_avx512_bf16.inl"
#include "backend/cpu/isa/tiles_amx.inl"
#include "backend/cpu/isa/widen_codes_avx512.inl"
#include "backend/cpu/isa/path.inl"
// clang-format on

}  // namespace

const Kernels& amx_bf16_kernels() {
  static constexpr Kernels kernels = kernels_of_path("amx_bf16", 800);
  return kernels;
}

}  // namespace dendrite::cpu
