#pragma once

#include <cstdint>
#include <unordered_map>
#include <vector>

#include "kv/slab.h"
#include "kv/strip.h"

namespace dendrite {

/// Finds who holds K and V of a path, by the path's hash: a table with an entry for each computed
/// position. Who stops to hold a path says nothing: a strip is asked whether it still does, and
/// entries of those that do not are swept when the table is full. So computing a row costs an
/// insertion here, and forking, cutting and dropping cost nothing.
///
/// Invariant: a strip that holds a path is its entry's, or among its twins, or its entry's strip
/// and its twins are found to have ended and it has been entered again.
class HeldPaths {
 public:
  /// Of these strips, which outlive it.
  explicit HeldPaths(const Slab<Strip>& strips) : strips_(strips) {}

  /// `strip` holds the path of this hash, which ends at `position`, from now on.
  void add(std::uint64_t path, std::int64_t position, Strip* strip);
  /// A strip that holds it; null: none does.
  Strip* find(std::uint64_t path, std::int64_t position);
  /// Calls f(Strip&) for strips that hold it, until f returns true.
  template <typename F>
  void find_if(std::uint64_t path, std::int64_t position, F f) {
    if (!find(path, position) || f(*entry(path)->strip)) return;
    const auto twins = twins_.find(path);
    if (twins == twins_.end()) return;
    for (Strip* strip : twins->second) {
      if (strip->holds(position, path) && f(*strip)) return;
    }
  }

 private:
  struct Entry {
    std::uint64_t path = 0;
    Strip* strip = nullptr;  // null: empty
  };

  /// The path's entry, or the empty one where it would be; null: there are no entries at all.
  Entry* entry(std::uint64_t path);
  void rebuild();

  const Slab<Strip>& strips_;
  std::vector<Entry> entries_;  // linear probing; a power of two
  std::size_t used_ = 0;        // entries and twins, those that have ended included
  /// Others that hold a path beside its entry's strip: rows that were computed more than once.
  std::unordered_map<std::uint64_t, std::vector<Strip*>> twins_;
};

}  // namespace dendrite
