#pragma once

namespace dendrite::cuda {

__device__ inline float sigmoid(float x) {
  const float e = expf(-fabsf(x));
  return (x >= 0 ? 1.0f : e) / (1.0f + e);
}

/// log(1 + e^x)
__device__ inline float softplus(float x) {
  return x > 20.0f ? x : log1pf(expf(x));
}

}  // namespace dendrite::cuda
