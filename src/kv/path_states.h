#pragma once

#include <array>
#include <cstdint>
#include <iterator>
#include <optional>
#include <span>
#include <vector>

#include "backend/recurrence_plan.h"
#include "backend/state_store.h"
#include "kv/page_pool.h"

namespace dendrite {

/// Which slots of a StateStore hold what of which page: the anchor behind its last position, and
/// the journal of each position. A page has as many positions as a chunk, so what is said of a page
/// is said of the paths that it is in, and goes when the page goes.
///
/// It is a cache. What is missing is computed again from the last anchor before it, to the same
/// bits; so whatever was used longest ago may be let go. Host bookkeeping only; not thread-safe.
class PathStates final : public PageWatch {
 public:
  static constexpr std::int32_t kNone = -1;

  PathStates(const StateShape& shape, std::int64_t pages);

  void acquired(PageId) override {}
  void released(PageId page) override { forget(page); }

  /// kNone: it is not kept.
  std::int32_t anchor(PageId page) const { return record(page).anchor; }
  std::int32_t journal(PageId page, std::int64_t offset) const {
    return record(page).journals[static_cast<std::size_t>(offset)];
  }

  /// What is used or taken from here on is not let go before the next step.
  void begin_step();
  void use(PageId page) { record(page).used = step_; }

  /// Slots for what this step's pass writes. `lasts`: of those that do not are let go first.
  /// kNone: none is free, and this step needs all.
  std::int32_t take_anchor(PageId page, bool lasts);
  std::int32_t take_journal(PageId page, std::int64_t offset);
  /// Whether so many of both could be taken now.
  bool has_room(std::int64_t anchors, std::int64_t journals) const;

  // --- seats
  //
  // A path that comes back to a token far behind what is kept computes rows for nothing but that.
  // Where states are few, paths would let go of each other's again and again. So who comes back
  // takes a seat, and keeps it until it has gone on by as many rows as coming back took: what it
  // goes on from is not let go meanwhile. Who finds all seats taken waits. So of all rows no more
  // than half are computed for coming back, but for paths that end before.

  /// Steps without a row after which a seat is free again.
  static constexpr std::uint64_t kPatience = 16;
  /// Whether the path whose last position known is in `page` has a seat.
  bool has_seat(std::optional<PageId> page) const { return page && seat_at(*page) != nullptr; }
  bool has_seats() const { return !seats_.empty(); }
  bool has_free_seat() const { return seats_.size() < most_seats_; }
  /// It has gone on to `page`, from the anchor of `before` on, by `back` rows of coming back and
  /// `on` others. `from`: where it was; without a seat there it takes one, if need be that which
  /// had no row for longest.
  void sit(std::optional<PageId> from, PageId page, std::optional<PageId> before, std::int64_t back,
           std::int64_t on);

  /// Somebody goes on from here who did not make it.
  void keep(PageId page) { record(page).lasts = true; }
  /// The position will be another path's: nothing that depends on it is known any more.
  void rewrite(PageId page, std::int64_t offset);
  /// Journals of the first positions, where `to` has none.
  void share(PageId from, PageId to, std::int64_t positions);
  void forget(PageId page);
  /// Forgets all.
  void clear();

  std::int32_t anchors_used() const {
    return static_cast<std::int32_t>(anchor_pages_.size() - free_anchors_.size());
  }
  std::int32_t journals_used() const {
    return static_cast<std::int32_t>(journal_refs_.size() - free_journals_.size());
  }

  /// Throws std::logic_error with what is wrong: counts, or something kept of a free page.
  void check_invariants(const PagePool& pool) const;

 private:
  struct Record {
    Record() { journals.fill(kNone); }

    std::array<std::int32_t, kChunkTokens> journals;
    std::int32_t anchor = kNone;
    bool lasts = false;            // its anchor
    std::int32_t seats = 0;        // paths with one that end in it
    std::int32_t seats_after = 0;  // ... or go on from its anchor
    std::uint64_t used = 0;        // the last step that used or took any of it
  };
  struct Seat {
    PageId page;
    std::optional<PageId> before;
    std::int64_t owed = 0;   // rows of its own before it gives the seat up
    std::uint64_t step = 0;  // of its last row
  };
  Record& record(PageId page) { return records_[static_cast<std::size_t>(index_of(page))]; }
  const Record& record(PageId page) const {
    return records_[static_cast<std::size_t>(index_of(page))];
  }
  bool may_drop_anchor(const Record& of) const {
    return of.used < step_ && of.seats == 0 && of.seats_after == 0;
  }
  bool may_drop_journals(const Record& of) const { return of.used < step_ && of.seats == 0; }
  const Seat* seat_at(PageId page) const;
  void count_seat(const Seat& seat, std::int32_t by);
  void leave(std::size_t seat);
  void drop_anchor(Record& record);
  void drop_journal(std::int32_t& slot);
  void drop_journals(Record& record);
  bool free_an_anchor();
  bool free_journals();

  std::vector<Record> records_;             // [pages]
  std::vector<PageId> anchor_pages_;        // [anchors], of those that are used
  std::vector<std::int32_t> journal_refs_;  // [journals], pages; 0: free
  std::vector<std::int32_t> free_anchors_;  // stacks
  std::vector<std::int32_t> free_journals_;
  std::vector<Seat> seats_;
  std::size_t most_seats_;
  std::uint64_t step_ = 1;
};

/// From where recurrent layers of a path go on.
struct StateStart {
  std::int64_t position = 0;  // of the first row that they need
  std::int32_t anchor = PathStates::kNone;
  std::int64_t known_count = 0;  // of positions behind the anchor and before `position`; ...
  std::array<std::int32_t, kChunkTokens> journals{};  // ... theirs

  std::span<const std::int32_t> known() const {
    return std::span(journals).first(static_cast<std::size_t>(known_count));
  }
  /// Where what is known begins: behind the anchor.
  std::int64_t known_begin() const { return position - known_count; }
};

/// What is kept of one page: the anchor behind it, or a journal.
struct StatePlace {
  static constexpr std::int64_t kAnchor = -1;
  PageId page = PageId{};
  std::int64_t offset = kAnchor;  // of the journal's position
  std::int32_t slot = PathStates::kNone;
};

}  // namespace dendrite
