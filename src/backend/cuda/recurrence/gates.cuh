#pragma once

namespace dendrite::cuda {

__device__ inline float sigmoid(float x) {
  const float e = expf(-fabsf(x));
  return (x >= 0 ? 1.0f : e) / (1.0f + e);
}

}  // namespace dendrite::cuda
