// The portable path: any machine; the specification of the others.
#include "backend/cpu/kernels.h"

#include <utility>

namespace dendrite::cpu {
namespace {

constexpr int kPortableLanes = 4;
constexpr bool kPortableFused = false;
// Each builds on the ones before.
// clang-format off
#include "backend/cpu/isa/common.inl"
#include "backend/cpu/isa/vector_portable.inl"
#include "backend/cpu/isa/path.inl"
// clang-format on

}  // namespace

const Kernels& portable_kernels() {
  static constexpr Kernels kernels = kernels_of_path("portable", 10);
  return kernels;
}

}  // namespace dendrite::cpu
