#pragma once

#include <cstdint>
#include <mutex>

#include "core/lock_check.h"

namespace dendrite {

// The locks of an engine. Each has one name for the compiler's check, whichever expression leads to
// the engine at hand (`engine_`, `*session.engine`, `*branch.session->engine`, ...): a function of
// a session and one of its engine agree on what is held. What is not checked is that it is this
// engine's and no other's.

/// Guards the tree, the prefix index, the logits pool, the readers of events, and the states of all
/// sessions and branches. Never held while the model runs.
inline constexpr LockName kTreeLock{};
/// Held by a call that runs the model, for as long as it runs. Taken before the tree's.
inline constexpr LockName kComputeLock{};

/// Of a part of a call that computes: with the call's lock, and without the tree's, which it takes
/// where it looks at the tree.
#define DENDRITE_COMPUTES DENDRITE_REQUIRES(kComputeLock) DENDRITE_EXCLUDES(kTreeLock)

class TreeMutex {
 public:
  /// How often it was taken so far, with this time.
  std::uint64_t taken() const DENDRITE_REQUIRES(kTreeLock) { return taken_; }

 private:
  friend class TreeLock;  // and nobody else can take it
  std::mutex mutex_;
  std::uint64_t taken_ = 0;
};

class DENDRITE_SCOPED_LOCK TreeLock {
 public:
  explicit TreeLock(TreeMutex& mutex) DENDRITE_ACQUIRE(kTreeLock) : lock_(mutex.mutex_) {
    ++mutex.taken_;
  }
  ~TreeLock() DENDRITE_RELEASE() {}
  TreeLock(const TreeLock&) = delete;
  TreeLock& operator=(const TreeLock&) = delete;

 private:
  std::scoped_lock<std::mutex> lock_;
};

class ComputeMutex {
  friend class ComputeLock;
  std::mutex mutex_;
};

class DENDRITE_SCOPED_LOCK ComputeLock {
 public:
  explicit ComputeLock(ComputeMutex& mutex) DENDRITE_ACQUIRE(kComputeLock)
      DENDRITE_EXCLUDES(kTreeLock)
      : lock_(mutex.mutex_) {}
  ~ComputeLock() DENDRITE_RELEASE() {}
  ComputeLock(const ComputeLock&) = delete;
  ComputeLock& operator=(const ComputeLock&) = delete;

 private:
  std::scoped_lock<std::mutex> lock_;
};

}  // namespace dendrite
