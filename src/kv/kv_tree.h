#pragma once

#include <cassert>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "backend/path_stores.h"
#include "core/tree_image.h"
#include "kv/held_paths.h"
#include "kv/kv_tree_stats.h"
#include "kv/page_pool.h"
#include "kv/path_states.h"
#include "kv/segment.h"
#include "kv/slab.h"

namespace dendrite {

// How the tree keeps every branch's bytes right
// ---------------------------------------------
//
// A branch is a tip: the end of a segment. Its tokens are those of the chain of segments up to the
// root; the page of position p, as that branch sees it, is the one of the *deepest* segment of the
// chain whose pages cover p's page index (but for stale head pages, see V3). Segments meet inside a
// page wherever a branch forked at a length that is no multiple of the page: then the child's first
// page ("head page") also holds the ancestors' slots below the child's begin, and hides the
// ancestors' own page of that index.
//
// Words. P: page_tokens. floor(p): p rounded down to a multiple of P. A position is *pending* while
// it has a token but no K and V. A page is *private* when its holder count (segments that list it)
// is 1.
//
// (V) Valid slots. For every segment S that has pages:
//     V1  slots of [S.begin, S.computed) in S's pages hold those positions' K and V;
//     V2  if S.computed > S.begin, so do the slots of [floor(S.begin), S.begin) in its head page;
//     V3  else the slots of [floor(S.begin), S.head_valid) do, and the rest may hold anything. If
//         more of the ancestors is computed than that, the head page is stale and hides nothing.
// (O) Order. If S.computed > S.begin, all of S's ancestors are complete (computed to their ends). K
//     and V of a position never change once computed: they depend on the branch's own tokens alone.
// (W) Writes. A batch writes pending positions only, and only into pages that were private to the
//     writing segment when the batch was planned. One that is planned before its tokens are known
//     (take_next) writes the position after a segment's end, likewise: a slot that holds nothing.
// (H) Sharing. Segments that hold the same page were cut from one segment by at(): they lie on one
//     chain, each upper one ends and each lower one begins inside that page.
//
// Why (V), (O), (W) and (H) survive every operation:
//
//   append   In place if the tip is the segment's only reference: no other branch sees the segment,
//            and the new tokens are pending. Else in a new child without pages. Nothing is written.
//   reserve  Walks the pending segments oldest first, so a parent has pages, and V3 as far as
//            anything is computed, before its child asks. A segment without pages gets new ones. A
//            head page gets a copy of the slots that are valid in the parent's last page, which has
//            the same index: those below the parent's `computed`, or its `head_valid` if nothing of
//            it is computed. That is all that exists, so V3 holds. If the head page is older (an
//            earlier step that never ran) and more has been computed since, the copy is made again:
//            a stale head cannot survive a reserve. Of the pages that pending positions lie in,
//            those that another segment holds, too (H), are replaced: the slots below `computed`,
//            if any, are copied to a new page. A segment without computed positions gives a shared
//            head page up and gets a new one. So (W) holds: all pages written next are private.
//   a batch  computes pending rows in order, ancestors' before descendants'. A row of segment A at
//            position p goes to A's own page, and (extra_stores) to the head page of every planned
//            segment D below A in whose head p lies and which has not got it: p in [D.head_valid,
//            D.begin). REQUIRES: reserve() was called for each planned tip after the last
//            set_computed(). So when D's first position is computed, [floor(D.begin), D.head_valid)
//            came by copy, the rest by extra stores of this batch: set_computed may put head_valid
//            = begin, and V2 holds. If D's rows did not fit in this batch, D.computed stays
//            D.begin, head_valid stays too low, and the next reserve copies again. While a batch
//            runs, fork, append, at and drop are allowed: they write no page and take none. reserve
//            and unreserve are not.
//   at       cuts a segment. The lower half keeps the object, its children and tips; the upper half
//            is a new parent. Each half keeps the pages it covers, and both the page across the cut
//            (H); what was valid in it stays valid for both, and a batch under way writes both
//            halves' positions into it. Nothing is moved: both halves go on using one strip
//            (strip.h). Of the page ids there, each is one segment's: the page across the cut is
//            the upper half's last, and the lower half has it as its first, outside of the strip.
//            So when one of them replaces it (reserve), the other does not see that. The upper half
//            can't be appended to in place while the lower lives, as that refers to it; if both are
//            pending, the next reserve parts them.
//   absorb   (inside reserve) A parent whose only reference is this child has no reader but the
//            child's: the two become one segment and the child's head page replaces the parent's
//            last page, if the child has computed slots; else the child's pages go and the parent's
//            page is written in place. Halves of a cut are on one strip: nothing is moved. Else
//            what the shorter of the two has is: a value is moved at most log2(length) times,
//            whatever is merged in whatever order. So the last holder never copies, and long-lived
//            branches stay short chains.
//   drop     releases pages of segments that nothing refers to. Their part of a strip is free then
//            for the segment above to grow into: it was the strip's end, as nobody dies before its
//            children.
//   evict    takes K and V of whole segments from a tip upwards, and of none that has a computed
//            child, so (O) holds; their tokens stay, and they are pending again. A child's head
//            page keeps what it holds of them (V3): values never change, so it is no less valid.
//
// Moved segments. K and V of some are not computed, but moved from positions of another path (V is
// copied, K rotated to its new position), see lineage.h. Such a segment is pending, has pages of
// its own, is committed, cut and evicted like any other, and values depend on its lineage alone
// (O). What differs: nothing is appended to it in place; it is merged only with what it was cut
// from; and while it is not complete it *waits* for its source: a tip at the end of the lineage
// that it names (MoveSource, one for all segments that name that lineage). Where there is none,
// open_sources finds who holds it, or grows it anew, with all tokens pending, moved ones again by
// their own sources. So a source is an ancestor in all but place: reserve, pages_needed, claim and
// unreserve go there, too. When nobody waits its tip is dropped, and its pages are whoever's they
// were.
//
// Flat tables. A tip trusts entries [0, trusted) of its table. Everything above replaces pages of
// index >= computed(tip) / P only, seen from any tip: reserve, unreserve and absorb touch pages
// that a pending position is in, at() changes no id. So entries below computed(tip) / P hold for
// ever, and only those are trusted; the few others are looked up again in the last segments at each
// call of table(). A table with more than one reference is never written: a branch that diverges
// copies it (memcpy). Evicting K and V of a segment (computed set back) is the one operation that
// breaks this; it bumps the epoch, and all tables are rebuilt.
//
// Held paths. Each computed position has the hash of the text's salt and all tokens up to it, in
// its strip, and an entry in a table by that hash (held_paths.h): so find_held knows whether
// anybody holds K and V of given tokens, and held_elsewhere which rows of a step are computed
// although somebody does.

/// One more place where a pending position's K and V go, see KvTree::extra_stores.
struct ExtraSlot {
  const Segment* owner = nullptr;  // the ancestor whose pending position it is
  std::int64_t position = 0;
  std::int64_t slot = 0;  // page * page_tokens + offset
};

/// A page, and how many of its slots hold K and V that somebody may read: [0, slots).
struct PageSlots {
  PageId page = PageId{};
  std::int32_t slots = 0;
};

/// Where K and V of the token after a tip's last will go.
struct NextSlot {
  std::int64_t slot = 0;  // page * page_tokens + offset
  PageId page = PageId{};
  bool spare = false;  // the page is in nobody's segment yet
};

/// The token tree over pages: forking, appending, rewinding, freeing, copy-on-write.
///
/// fork     O(1) in length and depth: one reference on the segment, one on the cached table.
/// append   tokens only, no pages: in place if the segment has one reference, else in a new child.
/// reserve  gives pages to pending tokens before they are computed. First write into a page that
///          others hold copies that page's valid slots, and nothing else, into a page of its own;
///          the last holder writes in place.
/// at       rewind: splits the segment and returns a tip at its upper half, so that dropping the
///          longer branches frees every page past the split.
/// drop     frees, without recursion, everything that no other tip can reach. O(pages freed).
///
/// A Segment* stays valid while a tip at or below it lives, except that reserve and pages_needed
/// merge parents into children (never one whose plan_mark is >= 0) and at() moves a segment's upper
/// part into a new parent. Not thread-safe: the engine serialises calls. Every Tip must be dropped
/// before the tree dies.
class KvTree {
 public:
  /// `stores` provide the bytes and outlive the tree, as `watch` does, if there is one;
  /// pages = stores.kv.shape().pages.
  explicit KvTree(const PathStores& stores, PageWatch* watch = nullptr);
  KvTree(const KvTree&) = delete;
  KvTree& operator=(const KvTree&) = delete;

  std::int64_t page_tokens() const { return page_tokens_; }
  /// Pages that `length` positions take from the start of one.
  std::int64_t page_count(std::int64_t length) const {
    return page_index(length + page_tokens_ - 1);
  }
  const PagePool& pool() const { return pool_; }

  // --- the tree of tokens
  /// A fresh empty sequence. Texts of another salt are none that find_held finds for this one's.
  Tip root(Salt salt = 0);
  Salt salt(const Tip& tip) const { return segment(tip)->salt; }
  /// Another tip at the same place. No allocation.
  Tip fork(const Tip& tip) {
    assert(tip.segment_ != nullptr);
    Tip copy;
    copy.segment_ = tip.segment_;
    copy.table_ = tip.table_;
    copy.trusted_ = tip.trusted_;
    ++copy.segment_->refs;
    if (copy.table_ != nullptr) ++copy.table_->refs;
    return copy;
  }
  /// Gives the tip's references back and leaves it empty. An empty tip stays as it is.
  void drop(Tip& tip);
  /// For who will drop many tips: fetches what drop(tip) will touch into the caches, first its
  /// segment and table and, when these have come, what its segment points to.
  static void prefetch(const Tip& tip) {
    __builtin_prefetch(tip.segment_, 1);
    __builtin_prefetch(&tip.segment_->refs, 1);
    __builtin_prefetch(tip.table_, 1);
  }
  static void prefetch_pages(const Tip& tip) {
    const Segment& segment = *tip.segment_;
    __builtin_prefetch(segment.strip, 1);
    if (segment.parent != nullptr) __builtin_prefetch(&segment.parent->refs, 1);
  }
  /// A tip at the first `length` tokens. Throws Error unless 0 <= length <= length(tip).
  /// O(segments past `length`): neither tokens nor page ids are moved.
  Tip at(const Tip& tip, std::int64_t length);
  void append(Tip& tip, std::span<const Token> tokens);

  // --- what is moved (kv_tree_moved.cpp)
  /// The next `count` tokens are those of `source` from `from` on, and their K and V will be moved
  /// from there.
  void append_moved(Tip& tip, const std::shared_ptr<const Lineage>& source, std::int64_t from,
                    std::int64_t count);
  /// A tip of that lineage, at the longest prefix of it that somebody holds; the rest is pending.
  Tip tip_of(const Lineage& lineage);
  /// Of the tip's first `length` positions. O(length).
  Lineage lineage(const Tip& tip, std::int64_t length) const;
  /// How often at most a K on the tip's path, or what it was computed behind, was rotated; 0:
  /// nothing was moved. O(segments).
  int moves(const Tip& tip) const;
  /// Tokens behind the last one that was moved; all, where none was.
  std::int64_t computed_at_end(const Tip& tip) const;
  /// Tokens that the two have in common because one was forked from the other, or both from a
  /// third.
  std::int64_t common_length(const Tip& a, const Tip& b) const;
  /// Before a step is planned, for every tip that is to run: the sources that it waits for have
  /// tips. May cut segments.
  void open_sources(const Tip& tip);
  /// Rows that the tip lacks, and the sources that it waits for: of tokens that are not moved.
  std::int64_t pending_rows(const Tip& tip) const;
  /// Whether the source of an incomplete moved segment has all that it names.
  bool can_move(const Segment& segment) const;
  /// Positions [begin, end) of a moved segment will be moved, +1, or have been, -1: meanwhile what
  /// they come from is neither evicted nor merged.
  void add_reader(const Segment& segment, std::int64_t begin, std::int64_t end, int readers);
  /// Calls f(const Tip&) for the tips of all sources that somebody waits for.
  template <typename F>
  void for_each_source(F f) const {
    for (const auto& [lineage, source] : source_by_lineage_) {
      if (!source->tip.empty()) f(source->tip);
    }
  }

  /// Those of the sources that this one waits for, and of what they wait for.
  template <typename F>
  void for_each_source_of(const Tip& tip, const F& f) const {
    for (const Segment* s = segment(tip); s != nullptr; s = s->parent) {
      if (waits_for_open(*s)) {
        f(s->source->tip);
        for_each_source_of(s->source->tip, f);
      }
      if (s->computed > s->begin) break;
    }
  }

  /// The hash of the tip's path. Requires: all of it is computed.
  std::uint64_t path(const Tip& tip) const { return computed_path(*segment(tip)); }

  // --- who holds K and V of given tokens
  /// A place in the tree, at or inside of a segment. Valid until the tree changes.
  struct Place {
    Segment* segment = nullptr;
    std::int64_t length = 0;  // 0: nowhere
  };
  /// The longest prefix of `tokens` of which somebody holds K and V; where that is all of them,
  /// rather at an end with a distribution. O(tokens), O(log tokens) looks at the table.
  Place find_held(std::span<const Token> tokens, Salt salt = 0);
  Place find_held(const Lineage& lineage);
  /// A tip there.
  Tip at(const Place& place) { return cut(place.segment, place.length); }
  /// Of the segment's pending positions [begin, end), to be computed now: how many somebody holds.
  /// They are the first ones. The segment's ancestors may be pending, too.
  std::int64_t held_elsewhere(const Segment& segment, std::int64_t begin, std::int64_t end);

  std::int64_t length(const Tip& tip) const { return segment(tip)->end(); }
  /// Positions with K and V.
  std::int64_t computed(const Tip& tip) const;
  /// Requires 0 <= position < length(tip).
  Token token(const Tip& tip, std::int64_t position) const;
  /// Writes the tokens of positions [begin, end) to out. Requires 0 <= begin <= end <= length(tip).
  void copy_tokens(const Tip& tip, std::int64_t begin, std::int64_t end, Token* out) const;
  /// Those at positions [begin, end), as far as there are such.
  std::vector<Token> tokens(const Tip& tip, std::int64_t begin = 0,
                            std::int64_t end = std::numeric_limits<std::int64_t>::max()) const;
  Segment* segment(const Tip& tip) const {
    assert(tip.segment_ != nullptr);
    return tip.segment_;
  }

  // --- pages; once a step for every tip that runs: reserve, missing_chain, extra_stores, table
  /// Free pages that reserve(tip) would take.
  std::int64_t pages_needed(const Tip& tip);
  /// Makes sure that all pending tokens of the tip's chain have pages of their own. All or nothing:
  /// false, and nothing changed, when the pool has fewer than pages_needed(tip).
  [[nodiscard]] bool reserve(const Tip& tip);
  /// Gives pages back that hold no computed position, after a step that failed or was cancelled.
  /// Skips segments with plan_mark >= 0. Never required for correctness: a stale reservation is
  /// mended by the next reserve; it only keeps pages from others.
  void unreserve(const Tip& tip);

  // --- the next token, for a step that is planned before it is known
  /// Where its K and V will go if it is appended in place. Takes a page where the token begins one.
  /// Nothing, and nothing taken: tokens are pending, another holds the segment or its last page, or
  /// no page is free. Every slot taken is settled or given back before the next reserve.
  std::optional<NextSlot> take_next(const Tip& tip);
  /// After the token was appended: true if it is the only pending one and its place is that one,
  /// whose page the segment has now. Otherwise the slot is given back.
  bool settle_next(const Tip& tip, const NextSlot& next);
  void give_back_next(const NextSlot& next);

  // --- eviction: K and V go, tokens stay, and the next reserve treats them as never computed
  /// Begins a round: nothing is claimed.
  void begin_eviction() { round_ = ++visit_; }
  /// Claims the segments of the tip's chain that nobody has claimed in this round: those whose KV
  /// is to be kept come first, then the others from the most to the least valued.
  std::uint64_t claim(const Tip& tip);
  /// Pages of the segments that it would claim. (One that two segments share may count twice.)
  std::int64_t unclaimed_pages(const Tip& tip) const;
  /// Takes K and V from the tip's end upwards, as far as its own claim goes, until `pages` pages
  /// are free; stops at a segment that is planned or that has a computed child. Then from sources
  /// that it waits for. True if it took any.
  bool evict(const Tip& tip, std::uint64_t claim, std::int64_t pages);

  /// The segments with pending tokens, from the oldest, or the deepest that is planned (plan_mark
  /// >= 0), down to the tip's own; none: `out` is empty.
  void missing_chain(const Tip& tip, std::vector<Segment*>& out) const;
  /// page * page_tokens + offset of one of the segment's own positions. Requires: it has a page.
  std::int64_t slot(const Segment& segment, std::int64_t position) const;
  /// Appends to `out` the places in this segment's head page that pending positions of its
  /// ancestors must be stored in as well. To be called for every segment with rows in the batch,
  /// and for others through whose head page a row of the batch attends; positions whose rows are
  /// not in the batch are left out.
  void extra_stores(const Segment& segment, std::vector<ExtraSlot>& out) const;
  /// After a batch, ancestors before descendants: positions below `position` now have K and V.
  /// Requires: segment.computed <= position <= segment.end().
  void set_computed(Segment& segment, std::int64_t position);

  /// The flat page table: entry i holds positions [i * page_tokens, ...), as far as pages are
  /// reserved: after reserve(tip), ceil(length / page_tokens) entries. Valid until the next append,
  /// drop or table of this tip, or reserve of a tip that shares pending segments with it.
  std::span<const std::int32_t> table(Tip& tip);
  /// For who compares tables of one tree read at different times: if the stamps are the same, so
  /// are the entries [0, settled) of the time before.
  struct TableMark {
    std::uint64_t stamp = 0;
    std::int64_t settled = 0;
  };
  /// Of what table(tip) has just returned.
  static TableMark table_mark(const Tip& tip) { return {tip.table_->stamp, tip.trusted_}; }

  // --- recurrent layers (kv_tree_states.cpp)
  /// Null: the model has none.
  PathStates* states() const { return states_.get(); }
  /// So that the state behind the tip's first `length` positions is known: at `length`, or before
  /// it where something is not kept. Requires: there are states, and length <= length(tip).
  StateStart state_start(const Tip& tip, std::int64_t length);
  /// Of each of the path's positions [begin, end), its page of the segment that the position is in:
  /// there its journal is kept, and the anchor behind it. Requires: they have pages.
  void own_pages(const Tip& tip, std::int64_t begin, std::int64_t end,
                 std::vector<PageId>& out) const;
  /// What is kept of what a tip goes on from behind its last computed position, and computes the
  /// distribution after that one from.
  std::vector<StatePlace> states_at_end(const Tip& tip);

  // --- snapshots (kv_tree_snapshot.cpp)
  /// The segments that the tips need, with their computed positions. `pages` gets what its pages
  /// are, in the image's order. O(segments + tokens).
  TreeImage image(std::span<const Tip* const> tips, std::vector<PageSlots>& pages) const;
  /// `count` pages in nobody's segment, to be filled and given to build, or given back; none, and
  /// false, when fewer are free. One taker at a time.
  [[nodiscard]] bool take_pages(std::int64_t count, std::vector<PageId>& out);
  void give_back_pages();
  /// The segments of an image, and a tip for each of its tips. `pages`: what take_pages gave,
  /// filled with what the image's pages held; empty: all tokens are pending. Requires:
  /// problem_of(image) says nothing, and pages are as many as page_count(image) or none.
  std::vector<Tip> build(const TreeImage& image, std::span<const PageId> pages);

  // --- statistics
  KvTreeStats stats() const;
  /// Pages that dropping this tip would give back. O(segments that only it holds).
  std::int64_t own_pages(const Tip& tip) const;
  /// Slots that hold K and V of a position that some tip can read, each once. O(pages, segments).
  std::int64_t slots_used() const;
  /// O(distinct pages and segments that the tips hold).
  KvUsage usage(std::span<const Tip* const> tips);

  // --- for tests and debug mode
  /// Checks counts, shapes, sharing and conservation against the complete set of live tips, but for
  /// those of sources. Throws
  /// std::logic_error with what is wrong and a dump.
  void check_invariants(std::span<const Tip* const> tips) const;
  /// `ends`: what to say of who ends at a segment; one line each.
  std::string dump(std::span<const std::pair<const Tip*, std::string>> ends = {}) const;
  /// Calls f(const Segment&) for every live segment.
  template <typename F>
  void for_each_segment(F f) const {
    segments_.for_each([&](const Segment& segment) {
      if (segment.refs != 0) f(segment);
    });
  }

 private:
  // Shifts: a division takes as long as the rest of fork's bookkeeping.
  std::int64_t page_index(std::int64_t position) const { return position >> page_shift_; }
  std::int64_t page_start(std::int64_t position) const {
    return position >> page_shift_ << page_shift_;
  }
  /// Pages a segment has when it is reserved up to `end`.
  std::int64_t pages_upto(const Segment& segment, std::int64_t end) const {
    return page_count(end) - page_index(segment.begin);
  }

  /// Slots of the segment's last page hold K and V of positions below this one (V).
  static std::int64_t valid_end(const Segment& segment) {
    return segment.computed > segment.begin ? segment.computed : segment.head_valid;
  }

  /// The head page lacks slots that are computed by now, so the ancestors' page still counts:
  /// reserved for a step that did not run, or that computed ancestors alone. `computed`: of the
  /// chain.
  static bool head_is_stale(const Segment& segment, std::int64_t computed) {
    return segment.computed == segment.begin && segment.head_valid < computed &&
           segment.head_valid < segment.begin;
  }

  Segment* new_segment(Segment* parent, Salt salt);
  void recycle(Segment* segment);  // releases its pages, but not its reference on the parent
  void leave_strip(Segment& segment);
  void push_tokens(Segment& segment, std::span<const Token> tokens);
  void push_page(Segment& segment, PageId page) { segment.set_page(segment.page_count++, page); }
  void release(Segment* segment);  // one reference; frees upwards
  void release_table(PageTable* table);
  void release_pages(Segment& segment, std::int64_t keep);
  void set_head(Segment& segment);
  Tip cut(Segment* segment, std::int64_t length);
  void split(Segment& lower, std::int64_t length);
  void absorb_parents(Segment& segment);
  void absorb_parent(Segment& segment);
  void share_strip(Segment& upper, Segment& lower);
  static void move_values(const Segment& from, Strip& to);
  void enter_held(const Segment& segment, std::int64_t begin);
  static std::uint64_t path_before(const Segment& segment);
  static std::uint64_t computed_path(const Segment& segment);
  void check_strip(const Segment& segment) const;
  void check_sources() const;
  static std::uint64_t next_path(std::uint64_t before, const Segment& segment,
                                 std::int64_t position);
  template <typename PathUpTo, typename Follows>
  Place find_longest(std::int64_t size, PathUpTo path_upto, Follows is_its);
  static bool follows(const Segment& segment, Salt salt, std::span<const Token> tokens,
                      std::span<const std::uint64_t> paths);

  Segment* open_child(Tip& tip);
  MoveSource& source_of(const std::shared_ptr<const Lineage>& lineage);
  static void share_source(Segment& upper, const Segment& lower, bool waited);
  void leave_source(Segment& segment);
  void stop_waiting(MoveSource& source);
  static bool waits_for_open(const Segment& segment) {
    return segment.moved() && !segment.complete() && !segment.source->tip.empty();
  }
  void tidy_chain(const Tip& tip);
  PageId acquire();

  /// Index among the segment's pages of the next pending position's page.
  std::int64_t first_write(const Segment& segment) const {
    return page_index(segment.computed) - page_index(segment.begin);
  }
  std::int64_t pages_missing(const Segment& segment) const;
  std::int64_t pages_needed(const Tip& tip, std::uint64_t stamp);
  void reserve_chain(const Tip& tip);
  void claim_chain(const Tip& tip, std::uint64_t stamp);
  bool evict_chain(const Tip& tip, std::uint64_t claim, std::int64_t pages);
  void reserve_segment(Segment& segment);
  void copy_on_write(Segment& segment, std::int64_t i);
  void refresh_head(Segment& segment);
  void copy_slots(PageId from, PageId to, std::int64_t tokens);

  std::int64_t page_tokens_;  // a power of two
  int page_shift_;            // its logarithm
  const PathStores stores_;
  std::unique_ptr<PathStates> states_;  // null: the model has none
  PagePool pool_;
  Slab<Segment> segments_;
  Slab<Strip> strips_;
  Slab<PageTable> tables_;
  Slab<MoveSource> sources_;
  std::unordered_map<const Lineage*, MoveSource*> source_by_lineage_;
  HeldPaths held_{strips_};
  std::uint64_t epoch_ = 0;   // of cached tables
  std::uint64_t stamps_ = 0;  // that tables have had
  std::uint64_t round_ = 0;   // first stamp of the current round of eviction
  std::uint64_t visit_ = 0;
  KvTreeStats counters_;
  std::vector<PageId> taken_;              // by take_pages: in nobody's segment yet
  std::vector<PageId> spares_;             // by take_next: in nobody's segment yet
  std::vector<std::uint64_t> page_visit_;  // [pages], stamps of usage()
  std::vector<Segment*> chain_;            // scratch of reserve and held_elsewhere
  std::vector<std::int32_t> entries_;      // scratch of table
  std::vector<std::uint64_t> paths_;       // scratch of find_held
};

}  // namespace dendrite
