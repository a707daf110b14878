#pragma once

#include <cassert>
#include <cstdint>
#include <optional>
#include <vector>

namespace dendrite {

/// A page: page_tokens slots in every layer of the KvStore. Its own type, so that a page can't be
/// passed where a token is meant.
enum class PageId : std::int32_t {};

constexpr std::int32_t index_of(PageId page) {
  return static_cast<std::int32_t>(page);
}

/// Hears of every page that is handed out, before it is, and of every one that is freed, before it
/// goes on the free list.
class PageWatch {
 public:
  virtual ~PageWatch() = default;
  virtual void acquired(PageId page) = 0;
  virtual void released(PageId page) = 0;
};

/// Hands out fixed-size KV pages and counts who holds each. Host bookkeeping only; not thread-safe.
/// Invariant: every page is on the free list with 0 holders, or off it with at least 1.
class PagePool {
 public:
  explicit PagePool(std::int32_t num_pages, PageWatch* watch = nullptr);
  /// One more that hears of pages; outlives the pool's use.
  void add(PageWatch& watch) { watches_.push_back(&watch); }

  /// A page with one holder, or nullopt when none is free. O(1).
  [[nodiscard]] std::optional<PageId> try_acquire();
  /// One more holder. Requires: page is held.
  void retain(PageId page);
  /// One holder less; the last one frees the page. Requires: page is held. O(1).
  void release(PageId page);

  std::int32_t holders(PageId page) const {
    assert(index_of(page) >= 0 && index_of(page) < size());
    return holders_[static_cast<std::size_t>(index_of(page))];
  }
  std::int32_t size() const { return static_cast<std::int32_t>(holders_.size()); }
  std::int32_t free_pages() const { return static_cast<std::int32_t>(free_.size()); }
  std::int32_t used_pages() const { return size() - free_pages(); }
  /// Pages handed out since the start.
  std::int64_t acquired() const { return acquired_; }

  /// Throws std::logic_error if the invariant does not hold. For tests.
  void check_invariants() const;

 private:
  std::vector<std::int32_t> holders_;  // [num_pages], 0 = free
  std::vector<PageId> free_;           // a stack: the page freed last is the one still in cache
  std::int64_t acquired_ = 0;
  std::vector<PageWatch*> watches_;
};

}  // namespace dendrite
