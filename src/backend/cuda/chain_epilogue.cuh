#pragma once

#include "backend/cuda/chain_arguments.cuh"
#include "backend/cuda/numbers.cuh"

// What the kernel in chain.cu does with a thread's sums.
namespace dendrite::cuda::chain {

__device__ inline float* target_of(const Arguments& args, int row, int column) {
  return static_cast<float*>(args.out) + row * args.out_stride + column;
}

/// Two columns of a row that is added to.
__device__ inline float2 load_old(const Arguments& args, int row, int column) {
  float2 old = make_float2(0, 0);
  if (args.epilogue != Epilogue::kAdd || row >= args.rows || column >= args.outputs) return old;
  const float* from = target_of(args, row, column);
  if (args.paired && column + 1 < args.outputs) {
    return __ldcg(reinterpret_cast<const float2*>(from));
  }
  old.x = __ldcg(from);
  if (column + 1 < args.outputs) old.y = __ldcg(from + 1);
  return old;
}

__device__ inline void store_pair(const Arguments& args, int row, int column, float first,
                                  float second, float2 old) {
  if (row >= args.rows || column >= args.outputs) return;
  const bool both = column + 1 < args.outputs;
  if (args.bias != nullptr) {
    first += args.bias[column];
    if (both) second += args.bias[column + 1];
  }
  if (args.epilogue == Epilogue::kAdd) {
    first += old.x;
    second += old.y;
  }
  float* to = target_of(args, row, column);
  if (args.paired && both) {
    *reinterpret_cast<float2*>(to) = make_float2(first, second);
    return;
  }
  to[0] = first;
  if (both) to[1] = second;
}

__device__ inline void store_silu(const Arguments& args, int row, int column, float gate,
                                  float up) {
  if (row >= args.rows || column >= args.outputs) return;
  if (args.bias != nullptr) {
    gate += args.bias[column];
    up += args.bias[args.ffn + column];
  }
  static_cast<bf16*>(args.out)[row * args.out_stride + column] = narrow<bf16>(silu(gate) * up);
}

}  // namespace dendrite::cuda::chain
