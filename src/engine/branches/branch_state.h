#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>

#include "core/copy_on_write.h"
#include "dendrite/session.h"
#include "draft/history.h"
#include "engine/branches/ahead.h"
#include "engine/branches/composition.h"
#include "engine/branches/constraint_place.h"
#include "kv/kv_tree.h"
#include "step/locks.h"
#include "text/detokenizer.h"

namespace dendrite {

struct SessionCore;

using EngineTime = std::chrono::steady_clock::time_point;

/// What few branches have: rules, pieces, drafts.
struct RareState {
  ConstraintPlace constraint{};
  /// How it was composed; null: it was not.
  std::shared_ptr<const CompositionRecord> composition{};
  /// In the session's SuffixProvider, as far as calls that draft have come.
  HistoryEnd heard{};
};

/// What a fork takes over from its parent, all by one assignment: a few words that do not grow with
/// the length of the branch or with the vocabulary.
struct Inherited {
  std::uint64_t stream = 0;  // a key rather than a state; a fork's own is derived from it
  std::int64_t prompt_length = 0;
  double logprob = 0;
  /// EngineCore::clock at its last call that computed.
  std::uint64_t last_used DENDRITE_GUARDED_BY(kTreeLock) = 0;
  int priority DENDRITE_GUARDED_BY(kTreeLock) = 0;
  std::int32_t prompt_shared DENDRITE_GUARDED_BY(kTreeLock) = 0;  // see BranchStats
  /// After the prompt; not known of a branch that was cut from a longer one or comes from a file:
  /// find_text finds it when it is wanted. Only who has the branch's handle, or the call that it is
  /// in, changes it; in a call with the tree lock.
  DetokState text{};
  /// Shared with forks until one changes it; copied and changed with the tree lock. Who may change
  /// the constraint is who may change `text`.
  CopyOnWrite<RareState> rare{};
};

/// All that a branch is: its place in the tree (one reference), what it inherited, and what it
/// counts itself.
struct BranchState : Inherited {
  SessionCore* session = nullptr;
  union {
    /// While on the session's free list.
    BranchState* next_free = nullptr;
    BranchState* exact;  // its exact twin (exact_behind.h), in the same slab; null: none
  };
  BranchId id = BranchId::kNone;
  BranchId parent = BranchId::kNone;
  Tip tip DENDRITE_GUARDED_BY(kTreeLock);
  /// With streams derived from this one's, see SessionCore::fork.
  std::uint64_t forks_made DENDRITE_GUARDED_BY(kTreeLock) = 0;
  /// Its K and V stay until then, see Branch::hold.
  EngineTime held_until DENDRITE_GUARDED_BY(kTreeLock) = {};
  std::unique_ptr<Ahead> ahead;  // drawn ahead, not taken over yet
  /// The number by which its call was let into steps; 0: it was not, or waits outside
  /// (admission.h).
  std::uint64_t admitted DENDRITE_GUARDED_BY(kTreeLock) = 0;
  // For Branch::stats(), since this branch was made:
  double step_ms DENDRITE_GUARDED_BY(kTreeLock) = 0;
  std::int32_t steps DENDRITE_GUARDED_BY(kTreeLock) = 0;
  std::int32_t last_step DENDRITE_GUARDED_BY(kTreeLock) = 0;  // the session's number of it
  std::int32_t tokens_generated DENDRITE_GUARDED_BY(kTreeLock) = 0;
  std::int32_t tokens_computed DENDRITE_GUARDED_BY(kTreeLock) = 0;
  std::int32_t tokens_regenerated DENDRITE_GUARDED_BY(kTreeLock) = 0;
  /// Tokens that an engine without sharing would have computed for this branch as a request of its
  /// own: 0 until the first of its rows is wanted, whatever it has from the one it was forked from.
  std::int32_t independent_tokens DENDRITE_GUARDED_BY(kTreeLock) = 0;
  /// Calls that it is in: until they have ended, nothing else changes it, ...
  std::int32_t calls DENDRITE_GUARDED_BY(kTreeLock) = 0;
  bool orphaned DENDRITE_GUARDED_BY(kTreeLock) = false;  // ... and its handle is gone already
  bool outside DENDRITE_GUARDED_BY(kTreeLock) = false;   // it waits outside of steps now
  bool is_ahead = false;  // no branch, only a place in the tree: of an Ahead, or an exact twin
  Finish finish = Finish::kRunning;
};
// A search has a million of them.
static_assert(sizeof(BranchState) <= 216);

}  // namespace dendrite
