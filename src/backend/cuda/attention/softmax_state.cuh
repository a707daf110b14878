#pragma once

#include "backend/cuda/base/mma.cuh"

namespace dendrite::cuda {

/// How two states of one row's softmax join: weights of the left and of the right one. Maxima are
/// in units of log2; an empty state has maximum -inf, sum 0 and values 0, and changes nothing (at
/// most the sign of a zero, which the output loses).
struct Fold {
  float top;
  float left;
  float right;
};

/// The weight of a state with maximum `top` in one with maximum `joined`.
__device__ inline float fold_weight(float top, float joined) {
  return power_of_two(__fsub_rn(top, joined == -INFINITY ? 0.0f : joined));
}
__device__ inline Fold fold_of(float left_top, float right_top) {
  const float top = fmaxf(left_top, right_top);
  return {top, fold_weight(left_top, top), fold_weight(right_top, top)};
}
/// A sum or a weighted value of the joined state.
__device__ inline float folded(const Fold& fold, float left, float right) {
  return __fmaf_rn(left, fold.left, __fmul_rn(right, fold.right));
}

}  // namespace dendrite::cuda
