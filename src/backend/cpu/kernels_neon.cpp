// The neon path: aarch64 Advanced SIMD.
#include "backend/cpu/kernels.h"

#include <arm_neon.h>

namespace dendrite::cpu {
namespace {

// Each builds on the ones before.
// clang-format off
#include "backend/cpu/isa/common.inl"
#include "backend/cpu/isa/vector_neon.inl"
#include "backend/cpu/isa/formats.inl"
#include "backend/cpu/isa/matmul.inl"
#include "backend/cpu/isa/rows.inl"
#include "backend/cpu/isa/attention.inl"
// clang-format on

}  // namespace

const Kernels& neon_kernels() {
  static constexpr Kernels kernels = {
      .name = "neon",
      .dot_bf16 = false,
      .gflops = 40,
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
