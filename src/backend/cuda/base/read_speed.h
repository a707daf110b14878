#pragma once

#include "backend/cuda/base/device.h"

namespace dendrite::cuda {

/// See Backend::read_gb_per_s: the best of a few passes over more memory than caches hold.
double read_gb_per_s(const Device& device);

}  // namespace dendrite::cuda
