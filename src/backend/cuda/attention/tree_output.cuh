#pragma once

#include "backend/cuda/attention/tree_arguments.h"
#include "backend/cuda/base/mma.cuh"
#include "backend/cuda/base/numbers.cuh"

namespace dendrite::cuda {

/// Whether a row has one partial result only: then the kernel that finds it writes the output, and
/// the merge leaves the row alone.
__device__ inline bool has_one_part(const TreePlanView& plan, std::int64_t row) {
  return plan.row_parts[row + 1] - plan.row_parts[row] == 1;
}

/// What weighted values are multiplied by; 0 if the row saw nothing.
__device__ inline float output_factor(float sum) {
  return sum > 0 ? 1.0f / sum : 0.0f;
}

/// Two neighbouring columns of a row's output.
__device__ inline void write_output(const TreeAttentionArguments& args, std::int64_t row,
                                    std::int64_t column, float first, float second, float factor) {
  first = __fmaf_rn(first, factor, 0.0f);
  second = __fmaf_rn(second, factor, 0.0f);
  if (args.out_bf16 != nullptr) {
    auto* out = static_cast<bf16*>(args.out_bf16) + row * args.out_bf16_ld + column;
    *reinterpret_cast<std::uint32_t*>(out) = pack_bf16(first, second);
  } else {
    float* out = args.out.data + row * args.out.stride + column;
    *reinterpret_cast<float2*>(out) = float2{first, second};
  }
}

}  // namespace dendrite::cuda
