#pragma once

#include <string>

#include "backend/cpu/kernels.h"

namespace dendrite::cpu {

/// The best path of this machine when `name` is empty, else the path by that name; an Error when
/// the machine (or this build) lacks it. "amx_bf16_model", too slow for all but tests, is never the
/// best.
const Kernels& select_kernels(const std::string& name);
/// The name of a path that computes the same bits: a model's is what it is a model of.
std::string numerics_of(const Kernels& kernels);

}  // namespace dendrite::cpu
