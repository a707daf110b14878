#pragma once

#include "kv/kv_tree.h"
#include "kv/memories.h"
#include "step/host.h"
#include "step/locks.h"

namespace dendrite {

/// Pages for the tokens of a draft: of what is free, and of what is only remembered. False: there
/// are too few.
inline bool reserve_for_draft(KvTree& tree, const Memories& memories, StepHost& host, Tip& tip)
    DENDRITE_REQUIRES(kTreeLock) {
  const std::int64_t pages = tree.pages_needed(tip);
  const std::int32_t used = tree.pool().used_pages();
  while (tree.pool().free_pages() < pages && memories.evict_one()) {
  }
  host.on_forgotten(used);
  return tree.reserve(tip);
}

}  // namespace dendrite
