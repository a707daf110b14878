#pragma once

#include <cstdint>

namespace dendrite {

/// Of a KvTree.
struct KvTreeStats {
  std::int64_t segments = 0;  // alive
  std::int64_t used_pages = 0;
  std::int64_t copies_on_write = 0;  // page copies since the start
  std::int64_t copied_tokens = 0;    // slots they moved
  std::int64_t splits = 0;
  std::int64_t absorbed = 0;  // segments that were merged into their only child
  std::int64_t evicted_segments = 0;
  std::int64_t evicted_tokens = 0;  // positions that lost K and V
};

/// What a set of branches holds, and what it would hold if every branch had its own pages.
struct KvUsage {
  std::int64_t unique_pages = 0;
  std::int64_t naive_pages = 0;
  std::int64_t unique_bytes = 0;
  std::int64_t naive_bytes = 0;
};

}  // namespace dendrite
