// The avx2 path: AVX2, FMA, F16C.
#include "backend/cpu/kernels.h"

#include <immintrin.h>

namespace dendrite::cpu {
namespace {

// Each builds on the ones before.
// clang-format off
#include "backend/cpu/isa/common.inl"
#include "backend/cpu/isa/vector_avx2.inl"
#include "backend/cpu/isa/formats.inl"
#include "backend/cpu/isa/matmul.inl"
#include "backend/cpu/isa/rows.inl"
#include "backend/cpu/isa/attention.inl"
// clang-format on

}  // namespace

const Kernels& avx2_kernels() {
  static constexpr Kernels kernels = {
      .name = "avx2",
      .dot_bf16 = false,
      .gflops = 70,
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
