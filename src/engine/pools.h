#pragma once

#include <cstdint>

#include "backend/host_memory.h"
#include "engine/branches/engine_core.h"

namespace dendrite {

/// Pages of a model, but for how many.
KvShape kv_shape(const EngineCore& core, const EngineOptions& options);

std::int64_t weight_bytes_of(const EngineCore& core);

/// What a pool is made from, beside all weights.
struct PoolRoom {
  DeviceMemory memory;
  bool given = false;  // see KvPoolWish
};

/// `taken`: bytes of weights and of other pools. For one of so many pools to be made.
PoolRoom room_for(const EngineCore& core, const EngineOptions& options, std::int64_t taken,
                  std::int64_t pools);

/// The pages, what recurrent layers keep, the tree over them and who turns it.
void make_tree(EngineCore& core, const EngineOptions& options, const PoolRoom& room);

}  // namespace dendrite
