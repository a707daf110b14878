#pragma once

#include <array>
#include <cstdint>
#include <iterator>
#include <optional>
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
  void begin_step() { ++step_; }
  void use(PageId page) { record(page).used = step_; }

  /// Slots for what this step's pass writes. `lasts`: of those that do not are let go first.
  /// kNone: none is free, and this step needs all.
  std::int32_t take_anchor(PageId page, bool lasts);
  std::int32_t take_journal(PageId page, std::int64_t offset);
  /// Who comes back to a token far behind what is kept may need several steps to get there. What it
  /// goes on from in between is not let go: of one path at a time, until its pages go or for so
  /// many steps without a row of it. `page`: of its last row; `before`: of the row before that
  /// chunk.
  static constexpr std::uint64_t kPatience = 16;
  void pin(PageId page, std::optional<PageId> before) { pin_ = Pin{page, before, step_}; }
  void unpin() { pin_.reset(); }
  /// The page of the last row of the path that is on its way.
  std::optional<PageId> pinned() const {
    return pin_ && step_ - pin_->step <= kPatience ? std::optional(pin_->page) : std::nullopt;
  }

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
    bool lasts = false;      // its anchor
    std::uint64_t used = 0;  // the last step that used or took any of it
  };
  struct Pin {
    PageId page;
    std::optional<PageId> before;
    std::uint64_t step;
  };
  bool is_pinned(PageId page) const {
    return pinned() && (page == pin_->page || pin_->before == page);
  }
  Record& record(PageId page) { return records_[static_cast<std::size_t>(index_of(page))]; }
  const Record& record(PageId page) const {
    return records_[static_cast<std::size_t>(index_of(page))];
  }
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
  std::optional<Pin> pin_;
  std::uint64_t step_ = 1;
};

/// From where recurrent layers of a path go on.
struct StateStart {
  std::int64_t position = 0;  // of the first row that they need
  std::int32_t anchor = PathStates::kNone;
  std::vector<std::int32_t> known{};  // journals behind the anchor, of the positions before it

  /// Where what is known begins: behind the anchor.
  std::int64_t known_begin() const { return position - std::ssize(known); }
};

}  // namespace dendrite
