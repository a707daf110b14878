#pragma once

#include <vector>

#include "kv/chunk_index.h"
#include "kv/composed_index.h"
#include "kv/prefix_index.h"

namespace dendrite {

/// What the tree keeps that no branch holds, and gives back first. Any may be null: there is none.
struct Memories {
  PrefixIndex* prompts = nullptr;
  ComposedIndex* compositions = nullptr;
  ChunkIndex* chunks = nullptr;

  /// Forgets the least recently used of one of them, where that gives pages back; compositions
  /// first, which cost no rows to make again, chunks last. False: nothing gives any.
  bool evict_one() const {
    return (compositions != nullptr && compositions->evict_one()) ||
           (prompts != nullptr && prompts->evict_one()) ||
           (chunks != nullptr && chunks->evict_one());
  }
  /// What is not in use, whoever else holds its pages.
  void clear() const {
    if (compositions != nullptr) compositions->clear();
    if (prompts != nullptr) prompts->clear();
    while (chunks != nullptr && chunks->evict_one()) {
    }
  }
  void collect_tips(std::vector<const Tip*>& out) const {
    if (compositions != nullptr) compositions->collect_tips(out);
    if (prompts != nullptr) prompts->collect_tips(out);
    if (chunks != nullptr) chunks->collect_tips(out);
  }
};

}  // namespace dendrite
