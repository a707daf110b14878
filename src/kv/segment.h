#pragma once

#include <cassert>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "dendrite/types.h"
#include "kv/lineage.h"
#include "kv/page_pool.h"
#include "kv/strip.h"

namespace dendrite {

/// The next-token distribution at a segment's end: shared by every branch whose tip it is.
struct LogitsRow {
  std::vector<float> values;  // [vocab] raw logits
};

struct MoveSource;

/// A run of tokens that never changes once two hold it. Positions [begin, end()).
/// How the fields hang together is the essay at the top of kv_tree.h. Two cache lines: a search has
/// more segments than caches have room for.
struct alignas(64) Segment {
  Segment* parent = nullptr;  // this segment holds one reference on it; parent->end() == begin
  std::int64_t begin = 0;
  std::int64_t size = 0;   // tokens
  Strip* strip = nullptr;  // one reference: where tokens and pages are; null only while empty
  /// Cover positions from `begin` rounded down to a page, without gaps; they may lag behind tokens.
  std::int32_t page_count = 0;
  PageId head{};  // the first of them, if there is one; the others are in the strip
  /// K and V of positions [begin, computed) are in pages. begin <= computed <= end().
  std::int64_t computed = 0;
  /// Ancestors' positions [page start of begin, head_valid) are also in `head`. Means something
  /// only while nothing of this segment is computed; afterwards all of them are, and it equals
  /// `begin`.
  std::int64_t head_valid = 0;
  /// Positions below this one had K and V before, and lost them to evict(). Counts rows that are
  /// computed again; nothing else depends on it. evicted_end <= end().
  std::int64_t evicted_end = 0;
  std::int32_t refs = 0;               // tips that end here + child segments
  std::int32_t computed_children = 0;  // child segments with computed > begin
  std::int32_t plan_mark = -1;  // scratch of the planner: index in the current plan, -1 outside
  std::int32_t readers = 0;     // scratch of the planner: moves of the current plan that read it
  std::uint64_t visit = 0;      // scratch of KvTree: stamp of the last walk that came here
  std::shared_ptr<const LogitsRow> logits;  // of the last token, or null: not known
  /// A moved segment's K and V come from there, position + shift, and are not computed. Null: they
  /// are computed. Its tokens are what they are there.
  MoveSource* source = nullptr;
  std::int64_t shift = 0;
  Salt salt = 0;  // of its root

  std::int64_t end() const { return begin + size; }
  bool complete() const { return computed == end(); }
  /// Its ancestors lack nothing: they are complete ((O) in kv_tree.h), or they were reserved and
  /// are planned, as it is.
  bool has_all_before() const { return computed > begin || plan_mark >= 0; }
  bool moved() const { return source != nullptr; }
  /// Whether K and V of the two come in one way, so that they could be one segment.
  bool made_like(const Segment& other) const {
    return source == other.source && shift == other.shift;
  }
  Token token(std::int64_t position) const { return strip->token(position); }
  std::span<const Token> tokens() const {
    if (size == 0) return {};
    return {&strip->token(begin), static_cast<std::size_t>(size)};
  }
  /// Requires: 0 <= i < page_count.
  PageId page(std::int64_t i) const { return i == 0 ? head : strip->page(page_place(i)); }
  PageId last_page() const { return page(page_count - 1); }
  void set_page(std::int64_t i, PageId page) {
    (i == 0 ? head : strip->page(page_place(i))) = page;
  }

 private:
  std::int64_t page_place(std::int64_t i) const { return (begin >> strip->page_shift) + i; }
};
static_assert(sizeof(Segment) == 128);

/// A flat page table: page i holds positions [i * page_tokens, ...). Shared by tips, each of which
/// trusts a prefix of it; written only while a single tip refers to it.
struct alignas(64) PageTable {
  std::vector<std::int32_t> pages;
  std::int32_t refs = 0;
  std::uint64_t epoch = 0;  // KvTree's when it was filled; if it differs now, nothing is trusted
  // No other table of the tree has or had this stamp, and while it keeps it, entries [0, settled)
  // stay as they are: some tip has trusted them.
  std::uint64_t stamp = 0;
  std::int32_t settled = 0;
};

/// A branch's place in the tree: the end of one segment, plus a cached flat page table so that a
/// step never walks the chain. Move-only; copied by KvTree::fork, and given back by KvTree::drop
/// before it dies. Default-constructed and moved-from: empty.
class Tip {
 public:
  Tip() = default;
  Tip(Tip&& other) noexcept
      : segment_(std::exchange(other.segment_, nullptr)),
        table_(std::exchange(other.table_, nullptr)),
        trusted_(std::exchange(other.trusted_, 0)) {}
  Tip& operator=(Tip&& other) noexcept {
    std::swap(segment_, other.segment_);
    std::swap(table_, other.table_);
    std::swap(trusted_, other.trusted_);
    return *this;
  }
  ~Tip() { assert(segment_ == nullptr && "a Tip must be dropped"); }

  bool empty() const { return segment_ == nullptr; }
  explicit operator bool() const { return segment_ != nullptr; }

 private:
  friend class KvTree;

  Segment* segment_ = nullptr;  // one reference
  PageTable* table_ = nullptr;  // one reference, or null: not built yet
  std::int32_t trusted_ = 0;    // entries [0, trusted_) of the table hold until the epoch ends
};

/// Where K and V of moved segments come from: a lineage, and a tip at its end while a segment that
/// refers to it still waits for them.
struct MoveSource {
  std::shared_ptr<const Lineage> lineage;
  Tip tip;                   // empty: nobody waits, or it has not been looked for
  std::int32_t refs = 0;     // segments
  std::int32_t waiting = 0;  // those of them that are not complete
};

}  // namespace dendrite
