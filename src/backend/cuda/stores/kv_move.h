#pragma once

#include "backend/cuda/base/device.h"
#include "backend/cuda/base/staging.h"
#include "backend/kv_move.h"

namespace dendrite::cuda {

/// Backend::move_kv; `args` are checked, of a CudaKvStore. One launch. The arrays of `args` may
/// change as soon as it returns.
void move_kv(const Device& device, Staging& staging, const KvMoves& args);

}  // namespace dendrite::cuda
