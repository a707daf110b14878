#pragma once

#include "backend/cuda/base/numbers.cuh"
#include "backend/ops.h"

// What becomes of a gate and what it lets through, by Activation::Kind.
namespace dendrite::cuda {

struct Silu {
  __device__ float operator()(float gate, float up) const { return silu(gate) * up; }
};

struct Gelu {
  /// P(g) = 1/2 (1 + tanh(y)) = sigmoid(2 y).
  __device__ float operator()(float gate, float up) const {
    const float inner = fmaf(gate * gate * gate, 0.044715f, gate);
    return gate * sigmoid(inner * 1.59576912f) * up;
  }
};

struct Clamped {
  float limit;
  float alpha;

  __device__ float operator()(float gate, float up) const {
    const float g = gate > limit ? limit : gate;  // (NaN stays)
    const float u = up > limit ? limit : up < -limit ? -limit : up;
    return g * sigmoid(alpha * g) * (u + 1.0f);
  }
};

/// Calls visit(gate) with the one of these that is meant; on the host or the device, as visit is.
#pragma nv_exec_check_disable
template <class Visit>
__host__ __device__ void with_gate(const Activation& activation, Visit visit) {
  switch (activation.kind) {
    case Activation::Kind::kSilu:
      return visit(Silu{});
    case Activation::Kind::kGelu:
      return visit(Gelu{});
    case Activation::Kind::kClamped:
      return visit(Clamped{activation.limit, activation.alpha});
  }
}

/// Of what has no gate.
struct SquaredRelu {
  __device__ float operator()(float value) const {
    const float positive = fmaxf(value, 0.0f);
    return positive * positive;
  }
};

}  // namespace dendrite::cuda
