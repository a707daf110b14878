// The avx512_bf16 path: AVX-512 F, BW, VL, DQ and the bf16 dot product.
#include "backend/cpu/kernels.h"

#include <immintrin.h>

namespace dendrite::cpu {
namespace {

#define DENDRITE_HAS_DOT_BF16 1
// Each builds on the ones before.
// clang-format off
#include "backend/cpu/isa/common.inl"
#include "backend/cpu/isa/vector_avx512.inl"
#include "backend/cpu/isa/formats.inl"
#include "backend/cpu/isa/matmul.inl"
#include "backend/cpu/isa/rows.inl"
#include "backend/cpu/isa/attention.inl"
// clang-format on

}  // namespace

const Kernels& avx512_bf16_kernels() {
  static constexpr Kernels kernels = {
      .name = "avx512_bf16",
      .dot_bf16 = true,
      .gflops = 100,
      .pack_rows = pack_rows,
      .matmul = matmul,
      .rms_norm = rms_norm,
      .silu_mul = silu_mul,
      .rope_and_store = rope_and_store,
      .attention = attention,
      .fold = fold,
  };
  return kernels;
}

}  // namespace dendrite::cpu
