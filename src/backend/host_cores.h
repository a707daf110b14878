#pragma once

namespace dendrite {

/// Cores that this process may use, at least 1: those that its affinity names, and no more than its
/// control groups allow, rounded up. More threads than these would wait for each other.
int usable_cores();

}  // namespace dendrite
