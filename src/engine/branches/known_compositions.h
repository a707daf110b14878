#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/branches/composition.h"
#include "kv/composed_index.h"

namespace dendrite {

/// What an index of compositions holds, by the pieces they were made of: who composes the same
/// again finds it without a look at its tokens. Pieces are the same if their sources are the same
/// object, as those of a chunk always are.
class KnownCompositions {
 public:
  struct Known {
    std::vector<PlainPiece> pieces;
    std::uint64_t tokens_hash = 0;
    std::shared_ptr<const CompositionRecord> record;
    std::uint64_t path = 0;  // in the index, with its number there
    std::uint64_t number = 0;
  };
  /// Of this index, which outlives it.
  KnownCompositions(const KvTree& tree, const ComposedIndex& index) : tree_(tree), index_(index) {}

  /// The one of these pieces, if all of it is computed. Valid until the next add().
  const Known* find(std::span<const PlainPiece> pieces) const;
  /// Its tip. Requires: find() gave it, and nothing was forgotten since.
  const Tip& tip(const Known& known) const { return *index_.find(known.path, known.number); }
  /// O(all that are known), which are no more than the index holds.
  void add(Known known);

 private:
  struct Entry {
    std::uint64_t hash = 0;  // of the pieces
    Known known;
  };
  const Entry* entry(std::uint64_t hash, std::span<const PlainPiece> pieces) const;

  const KvTree& tree_;
  const ComposedIndex& index_;
  std::vector<Entry> entries_;  // for one of the index at most one: the pieces of the last time
};

}  // namespace dendrite
