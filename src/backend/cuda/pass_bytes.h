#pragma once

#include <cstdint>

#include "backend/pass.h"

namespace dendrite::cuda {

/// Backend::pass_bytes. tensor_cores: whether products, and so attention mostly, run on them.
std::int64_t pass_bytes(const PassSizes& sizes, bool tensor_cores);

}  // namespace dendrite::cuda
