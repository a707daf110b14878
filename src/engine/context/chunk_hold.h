#pragma once

#include <memory>

#include "engine/branches/engine_core.h"
#include "kv/chunk_index.h"

namespace dendrite {

/// What handles of a chunk share: while it lives the chunk is in use.
struct ChunkHold {
  /// Requires the tree lock.
  ChunkHold(std::shared_ptr<EngineCore> of, std::shared_ptr<ChunkEntry> chunk)
      DENDRITE_REQUIRES(kTreeLock);
  ~ChunkHold() DENDRITE_EXCLUDES(kTreeLock);
  ChunkHold(const ChunkHold&) = delete;
  ChunkHold& operator=(const ChunkHold&) = delete;

  const std::shared_ptr<EngineCore> engine;
  const std::shared_ptr<ChunkEntry> entry;
};

}  // namespace dendrite
