#pragma once

#include "backend/cuda/base/device.h"
#include "backend/cuda/experts/experts.h"

namespace dendrite::cuda {

/// Rows of a pass up to which these are faster than the kernels of products.cu.
inline constexpr std::int32_t kFewRows = 8;

/// Before the others.
void prepare_few_products(const Device& device);
/// As launch_gate_ups().
void launch_few_gate_ups(const ExpertsArguments& args, int kind, const Device& device);
/// As launch_downs(), and launch_ups() where args.ups.
void launch_few_outputs(const ExpertsArguments& args, int kind, const Device& device);

}  // namespace dendrite::cuda
