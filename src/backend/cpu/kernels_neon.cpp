// The neon path: aarch64 Advanced SIMD.
#include "backend/cpu/kernels.h"

#include <arm_neon.h>

#include <utility>

namespace dendrite::cpu {
namespace {

// Each builds on the ones before.
// clang-format off
#include "backend/cpu/isa/common.inl"
#include "backend/cpu/isa/vector_neon.inl"
#include "backend/cpu/isa/path.inl"
// clang-format on

}  // namespace

const Kernels& neon_kernels() {
  static constexpr Kernels kernels = kernels_of_path("neon", 40);
  return kernels;
}

}  // namespace dendrite::cpu
