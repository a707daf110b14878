#pragma once

#include <chrono>
#include <cstdint>
#include <memory>

#include "dendrite/session.h"
#include "engine/ahead.h"
#include "kv/kv_tree.h"
#include "text/detokenizer.h"

namespace dendrite {

struct SessionCore;

using EngineTime = std::chrono::steady_clock::time_point;

/// All that a branch is, and all that a fork copies: its place in the tree (one reference), a
/// random stream that is a key rather than a state, and a few words of text and stop state. Nothing
/// in it grows with the length of the branch or with the vocabulary.
struct BranchState {
  SessionCore* session = nullptr;
  BranchState* next_free = nullptr;  // while on the session's free list
  BranchId id = BranchId::kNone;
  BranchId parent = BranchId::kNone;
  Tip tip;
  std::uint64_t stream = 0;
  std::uint64_t forks_made = 0;
  std::int64_t prompt_length = 0;
  /// Tokens that an engine without sharing would have computed for this branch as a request of its
  /// own: 0 until the first of its rows is wanted, whatever it has from the one it was forked from.
  std::int64_t independent_tokens = 0;
  double logprob = 0;
  std::uint64_t last_used = 0;  // EngineCore::clock at its last call that computed
  int priority = 0;
  EngineTime held_until{};  // its K and V stay until then, see Branch::hold
  // For Branch::stats(), since this branch was made:
  std::int32_t steps = 0;
  double step_ms = 0;
  std::int32_t last_step = 0;  // the session's number of it
  std::int32_t tokens_generated = 0;
  std::int32_t tokens_computed = 0;
  DetokState text;
  Finish finish = Finish::kRunning;
  bool is_ahead = false;         // the state of an Ahead: no branch, only a place in the tree
  std::unique_ptr<Ahead> ahead;  // drawn ahead, not taken over yet
};

}  // namespace dendrite
