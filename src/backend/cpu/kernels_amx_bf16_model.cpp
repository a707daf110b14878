// The amx_bf16 path's bits on any machine, by plain C++: slow, for tests.
#include "backend/cpu/kernels.h"

#include <utility>

namespace dendrite::cpu {
namespace {

#define DENDRITE_TILES 1
constexpr int kPortableLanes = 16;
constexpr bool kPortableFused = true;
// Each builds on the ones before.
// clang-format off
#include "backend/cpu/isa/common.inl"
#include "backend/cpu/isa/vector_portable.inl"
#include "backend/cpu/isa/rounding_model.inl"
#include "backend/cpu/isa/tiles_model.inl"
#include "backend/cpu/isa/widen_codes_model.inl"
#include "backend/cpu/isa/path.inl"
// clang-format on

}  // namespace

const Kernels& amx_bf16_model_kernels() {
  static constexpr Kernels kernels = kernels_of_path("amx_bf16_model", 0.5);
  return kernels;
}

}  // namespace dendrite::cpu
