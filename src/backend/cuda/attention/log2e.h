#pragma once

namespace dendrite::cuda {

/// Brings scores to units of log2: e^x = 2^(kLog2E x).
inline constexpr float kLog2E = 1.44269504f;

}  // namespace dendrite::cuda
