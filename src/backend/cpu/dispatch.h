#pragma once

#include <string>

#include "backend/cpu/kernels.h"

namespace dendrite::cpu {

/// The best path of this machine when `name` is empty, else the path by that name; an Error when
/// the machine (or this build) lacks it.
const Kernels& select_kernels(const std::string& name);

}  // namespace dendrite::cpu
