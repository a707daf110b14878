#pragma once

#include <string>

#include "backend/cpu/kernels.h"

namespace dendrite::cpu {

/// The path by that name; an Error when the machine (or this build) lacks it. Empty: the one that
/// DENDRITE_TEST_KERNELS names in the environment, else the best of this machine. "amx_bf16_model",
/// too slow for all but tests, is never the best.
const Kernels& select_kernels(const std::string& wanted);
/// The name of a path that computes the same bits: a model's is what it is a model of.
std::string numerics_of(const Kernels& kernels);

}  // namespace dendrite::cpu
