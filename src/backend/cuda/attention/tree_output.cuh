#pragma once

#include "backend/cuda/attention/log2e.h"
#include "backend/cuda/attention/softmax_state.cuh"
#include "backend/cuda/attention/tree_arguments.h"
#include "backend/cuda/base/mma.cuh"
#include "backend/cuda/base/numbers.cuh"

namespace dendrite::cuda {

/// Whether a row has one partial result only: then the kernel that finds it writes the output, and
/// the merge leaves the row alone.
__device__ inline bool has_one_part(const TreePlanView& plan, std::int64_t row) {
  return plan.row_parts[row + 1] - plan.row_parts[row] == 1;
}

/// What weighted values of a row's state are multiplied by; 0 if the row saw nothing. A sink is a
/// state more: of one score, without values.
__device__ inline float output_factor(const TreeAttentionArguments& args, int head, float top,
                                      float sum) {
  float weight = 1;
  if (args.sinks != nullptr && sum > 0) {
    const Fold fold = fold_of(top, __fmul_rn(args.sinks[head], kLog2E));
    weight = fold.left;
    sum = folded(fold, sum, 1.0f);
  }
  return sum > 0 ? weight * (1.0f / sum) : 0.0f;
}

/// Calls `write` with where a row's output has `column`: float* or bf16*.
template <typename Write>
__device__ __forceinline__ void with_output(const TreeAttentionArguments& args, std::int64_t row,
                                            std::int64_t column, Write write) {
  if (args.out_bf16 != nullptr) {
    write(static_cast<bf16*>(args.out_bf16) + row * args.out_bf16_ld + column);
  } else {
    write(args.out.data + row * args.out.stride + column);
  }
}

/// Two neighbouring columns.
__device__ inline void write_output(float* out, float first, float second, float factor) {
  *reinterpret_cast<float2*>(out) =
      float2{__fmaf_rn(first, factor, 0.0f), __fmaf_rn(second, factor, 0.0f)};
}
__device__ inline void write_output(bf16* out, float first, float second, float factor) {
  *reinterpret_cast<std::uint32_t*>(out) =
      pack_bf16(__fmaf_rn(first, factor, 0.0f), __fmaf_rn(second, factor, 0.0f));
}

}  // namespace dendrite::cuda
