#pragma once

#include <cstdint>
#include <list>
#include <span>
#include <unordered_map>
#include <vector>

#include "kv/kv_tree.h"

namespace dendrite {

struct ComposedIndexStats {
  std::int64_t entries = 0;
  std::int64_t evictions = 0;
};

/// Keeps what was composed lately, so that composing the same again computes nothing: a tip for
/// each composition. Who looks for one asks the tree (KvTree::find_held), which knows all that
/// anybody holds. Like prompts in the prefix index, which never has a path that something was moved
/// to, they go when pages run out, the least recently used first.
class ComposedIndex {
 public:
  explicit ComposedIndex(KvTree& tree) : tree_(tree) {}
  ~ComposedIndex() { clear(); }
  ComposedIndex(const ComposedIndex&) = delete;
  ComposedIndex& operator=(const ComposedIndex&) = delete;

  /// Remembers the path that ends at `tip`, whose hash is `path`: as the most recent one, if it is
  /// known. Returns a number that is this tip's, and never another's.
  std::uint64_t insert(std::uint64_t path, const Tip& tip);
  /// The tip that was inserted by this hash and got this number; null: it was forgotten.
  const Tip* find(std::uint64_t path, std::uint64_t number) const;
  /// Forgets the least recently used one whose end nothing else refers to. False: there is none.
  bool evict_one();
  void clear();

  ComposedIndexStats stats() const { return {std::ssize(recent_), evictions_}; }
  void collect_tips(std::vector<const Tip*>& out) const;

 private:
  /// More are of no use: whoever comes back so late computes a little.
  static constexpr std::size_t kMost = 256;

  struct Entry {
    std::uint64_t path = 0;
    std::uint64_t number = 0;
    Tip tip;
  };
  using Recency = std::list<Entry>;  // the most recent first

  void forget(Recency::iterator entry);

  KvTree& tree_;
  Recency recent_;
  std::unordered_map<std::uint64_t, Recency::iterator> by_path_;
  std::uint64_t numbers_ = 0;  // given
  std::int64_t evictions_ = 0;
};

}  // namespace dendrite
