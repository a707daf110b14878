#pragma once

// Locks that the compiler checks: what a member is guarded by and what a function requires is
// written where it is declared, and clang's -Wthread-safety (tools/check_locks.sh) follows it to
// every use. Other compilers see nothing. See docs/decisions/0023-checked-locks.md.
#if defined(__clang__)
#define DENDRITE_LOCK_ATTRIBUTE(x) __attribute__((x))
#else
#define DENDRITE_LOCK_ATTRIBUTE(x)
#endif

/// Of a member: it is read and written with the lock held.
#define DENDRITE_GUARDED_BY(x) DENDRITE_LOCK_ATTRIBUTE(guarded_by(x))
/// Of a pointer: what it points to is.
#define DENDRITE_PT_GUARDED_BY(x) DENDRITE_LOCK_ATTRIBUTE(pt_guarded_by(x))
/// Of a function or lambda: called with the lock held.
#define DENDRITE_REQUIRES(...) DENDRITE_LOCK_ATTRIBUTE(requires_capability(__VA_ARGS__))
/// Of a function: called without it, since it takes it or waits for long.
#define DENDRITE_EXCLUDES(...) DENDRITE_LOCK_ATTRIBUTE(locks_excluded(__VA_ARGS__))
/// Of a class whose objects hold a lock as long as they live, its constructor, its destructor.
#define DENDRITE_SCOPED_LOCK DENDRITE_LOCK_ATTRIBUTE(scoped_lockable)
#define DENDRITE_ACQUIRE(...) DENDRITE_LOCK_ATTRIBUTE(acquire_capability(__VA_ARGS__))
#define DENDRITE_RELEASE() DENDRITE_LOCK_ATTRIBUTE(release_capability())

namespace dendrite {

/// A lock as the annotations name it.
struct DENDRITE_LOCK_ATTRIBUTE(capability("lock")) LockName {};

}  // namespace dendrite
