#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "backend/kv_store.h"
#include "kv/page_pool.h"

namespace dendrite {

class KvTree;
class Tip;

/// Debug mode of the KV cache: finds what wrote where it must not, soon after it did. A pool and a
/// tree that were made without one pay one test of a pointer for each page taken or given back. It
/// looks at copies of pages (KvStore::read_raw), so that it is the same on every device.
///
///   canaries   64 bytes of 0xDEADBEEFCAFEBABE on both sides of a page, and a filled guard region
///              behind the second, in a store made with KvShape::guarded
///   free pages are filled with 0xDEADBEEF, and checked when they are taken again
///   full pages (all positions computed, so immutable) have a checksum
///   writes     a step writes to pages that one segment holds and that are not full
///   the tree   KvTree::check_invariants over all live tips: counts equal references (I1), no cycle
///              (I2), free pages have no holder (I3), live tips map to valid pages (I4)
///
/// Everything requires the lock of the tree.
class KvDebug : public PageWatch {
 public:
  /// Told what was found; does not return. The engine's prints the tree and aborts.
  using OnViolation = std::function<void(const std::string& what)>;

  /// `store` outlives it. Without `on_violation`, a violation throws std::logic_error. Pages are
  /// filled when they are first given back.
  explicit KvDebug(KvStore& store, OnViolation on_violation = {});

  void acquired(PageId page) override;
  void released(PageId page) override;

  /// Before a step: the page of this slot (-1: none) may be written to.
  void check_write(const KvTree& tree, std::int64_t slot) const;

  /// After an operation: the tree against the complete set of live tips, then the pages' memory
  /// (I5). Of memory at most kBytesAtOnce is read a call, going on where the last call stopped: all
  /// of it in a small pool.
  void check(const KvTree& tree, std::span<const Tip* const> tips);
  /// All memory, for the end of a test.
  void check_memory();

  static constexpr std::int64_t kBytesAtOnce = std::int64_t{16} << 20;

 private:
  struct Page {
    bool known = false;   // its canaries are there: it was taken at least once
    bool filled = false;  // free, and holds the pattern
    bool full = false;    // immutable: `checksum` holds
    std::uint64_t checksum = 0;
  };

  Page& state(PageId page) { return pages_[static_cast<std::size_t>(index_of(page))]; }
  void update_full(const KvTree& tree);
  void check_page(PageId page);
  /// Brings a page's memory to `memory_`.
  void read(PageId page);
  void write(PageId page);
  /// f(bytes, offset in the page) for the pieces of what `memory_` holds, of one kind: the bytes
  /// before, of or after the page.
  enum class Band : std::uint8_t { kBefore, kPage, kAfter };
  template <typename F>
  void for_pieces(Band band, F f);
  void fill(Band band, std::uint64_t pattern);
  std::uint64_t checksum();
  [[noreturn]] void fail(PageId page, const std::string& what) const;
  [[noreturn]] void fail(const std::string& what) const;

  /// A part of the store, and where its page is in `memory_`.
  struct Part {
    KvStore* store;
    KvStore::RawLayout layout;
    std::int64_t begin;
  };
  std::vector<Part> parts_;
  OnViolation on_violation_;
  std::vector<Page> pages_;
  std::vector<bool> full_now_;     // scratch
  std::vector<std::byte> memory_;  // scratch: a page
  std::int32_t next_ = 0;          // the page that the next look at memory begins with
};

/// Prints what was found and a dump of the tree on stderr, and aborts: debug mode alone does that.
[[noreturn]] void abort_with_dump(const std::string& what, const KvTree& tree);

}  // namespace dendrite
