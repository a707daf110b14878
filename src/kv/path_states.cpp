#include "kv/path_states.h"

#include <algorithm>
#include <stdexcept>
#include <string>
#include <tuple>

namespace dendrite {

PathStates::PathStates(const StateShape& shape, std::int64_t pages)
    : records_(static_cast<std::size_t>(pages)),
      anchor_pages_(static_cast<std::size_t>(shape.anchors)),
      journal_refs_(static_cast<std::size_t>(shape.journals), 0),
      most_seats_(static_cast<std::size_t>(std::max<std::int64_t>(
          1, std::min(shape.anchors / 2, shape.journals / (2 * kChunkTokens))))) {
  for (auto slot = static_cast<std::int32_t>(shape.anchors); slot-- > 0;) {
    free_anchors_.push_back(slot);
  }
  for (auto slot = static_cast<std::int32_t>(shape.journals); slot-- > 0;) {
    free_journals_.push_back(slot);
  }
}

void PathStates::begin_step() {
  ++step_;
  for (std::size_t i = seats_.size(); i-- > 0;) {
    if (step_ - seats_[i].step > kPatience) leave(i);
  }
}

std::int32_t PathStates::take_anchor(PageId page, bool lasts) {
  Record& of = record(page);
  if (of.anchor == kNone) {
    if (free_anchors_.empty() && !free_an_anchor()) return kNone;
    of.anchor = free_anchors_.back();
    free_anchors_.pop_back();
    anchor_pages_[static_cast<std::size_t>(of.anchor)] = page;
  }
  of.lasts = of.lasts || lasts;
  of.used = step_;
  return of.anchor;
}

std::int32_t PathStates::take_journal(PageId page, std::int64_t offset) {
  Record& of = record(page);
  of.used = step_;
  std::int32_t& slot = of.journals[static_cast<std::size_t>(offset)];
  if (slot == kNone) {
    if (free_journals_.empty() && !free_journals()) return kNone;
    slot = free_journals_.back();
    free_journals_.pop_back();
    journal_refs_[static_cast<std::size_t>(slot)] = 1;
  }
  return slot;
}

bool PathStates::has_room(std::int64_t anchors, std::int64_t journals) const {
  anchors -= std::ssize(free_anchors_);
  for (std::size_t i = 0; anchors > 0 && i < anchor_pages_.size(); ++i) {
    if (may_drop_anchor(record(anchor_pages_[i]))) --anchors;
  }
  journals -= std::ssize(free_journals_);
  for (std::size_t i = 0; journals > 0 && i < records_.size(); ++i) {
    if (!may_drop_journals(records_[i])) continue;
    journals -= std::ranges::count_if(records_[i].journals, [this](std::int32_t slot) {
      return slot != kNone && journal_refs_[static_cast<std::size_t>(slot)] == 1;
    });
  }
  return anchors <= 0 && journals <= 0;
}

const PathStates::Seat* PathStates::seat_at(PageId page) const {
  if (record(page).seats == 0) return nullptr;
  return &*std::ranges::find(seats_, page, &Seat::page);
}

void PathStates::count_seat(const Seat& seat, std::int32_t by) {
  record(seat.page).seats += by;
  if (seat.before) record(*seat.before).seats_after += by;
}

void PathStates::leave(std::size_t seat) {
  count_seat(seats_[seat], -1);
  seats_[seat] = seats_.back();
  seats_.pop_back();
}

void PathStates::sit(std::optional<PageId> from, PageId page, std::optional<PageId> before,
                     std::int64_t back, std::int64_t on) {
  Seat seat;
  if (const Seat* old = from ? seat_at(*from) : nullptr; old != nullptr) {
    seat.owed = old->owed;
    leave(static_cast<std::size_t>(old - seats_.data()));
  }
  seat.owed += back - on;
  if (seat.owed <= 0) return;
  if (!has_free_seat()) {
    leave(static_cast<std::size_t>(std::ranges::min_element(seats_, {}, &Seat::step) -
                                   seats_.begin()));
  }
  seat.page = page;
  seat.before = before;
  seat.step = step_;
  count_seat(seat, 1);
  seats_.push_back(seat);
}

void PathStates::rewrite(PageId page, std::int64_t offset) {
  Record& of = record(page);
  drop_anchor(of);
  drop_journal(of.journals[static_cast<std::size_t>(offset)]);
}

void PathStates::share(PageId from, PageId to, std::int64_t positions) {
  const Record& source = record(from);
  Record& target = record(to);
  for (std::size_t i = 0; i < static_cast<std::size_t>(positions); ++i) {
    if (target.journals[i] != kNone || source.journals[i] == kNone) continue;
    target.journals[i] = source.journals[i];
    ++journal_refs_[static_cast<std::size_t>(source.journals[i])];
    target.used = std::max(target.used, source.used);
  }
}

void PathStates::forget(PageId page) {
  Record& of = record(page);
  for (std::size_t i = seats_.size(); of.seats + of.seats_after > 0 && i-- > 0;) {
    if (seats_[i].page == page || seats_[i].before == page) leave(i);
  }
  drop_anchor(of);
  drop_journals(of);
}

void PathStates::clear() {
  for (std::size_t i = 0; i < records_.size(); ++i) forget(static_cast<PageId>(i));
}

void PathStates::drop_anchor(Record& of) {
  if (of.anchor != kNone) free_anchors_.push_back(of.anchor);
  of.anchor = kNone;
  of.lasts = false;
}

void PathStates::drop_journal(std::int32_t& slot) {
  if (slot != kNone && --journal_refs_[static_cast<std::size_t>(slot)] == 0) {
    free_journals_.push_back(slot);
  }
  slot = kNone;
}

void PathStates::drop_journals(Record& of) {
  for (std::int32_t& slot : of.journals) {
    if (slot != kNone) drop_journal(slot);
  }
}

/// The one used longest ago, of those that do not last if there are such.
bool PathStates::free_an_anchor() {
  const auto rank = [this](PageId page) {
    const Record& of = record(page);
    return std::tuple(!may_drop_anchor(of), of.lasts, of.used);
  };
  const auto oldest = std::ranges::min_element(anchor_pages_, {}, rank);
  if (oldest == anchor_pages_.end() || std::get<0>(rank(*oldest))) return false;
  drop_anchor(record(*oldest));
  return true;
}

/// Those of the quarter of the pages that were used longest ago: looking at all of them is dear.
bool PathStates::free_journals() {
  std::vector<Record*> old;
  for (Record& of : records_) {
    const bool has = std::ranges::any_of(of.journals, [](std::int32_t slot) { return slot >= 0; });
    if (has && may_drop_journals(of)) old.push_back(&of);
  }
  std::ranges::sort(old, {}, &Record::used);
  for (std::size_t i = 0; i < old.size(); ++i) {
    if (i >= (old.size() + 3) / 4 && !free_journals_.empty()) break;
    drop_journals(*old[i]);
  }
  return !free_journals_.empty();
}

void PathStates::check_invariants(const PagePool& pool) const {
  std::vector<std::int32_t> refs(journal_refs_.size(), 0);
  std::int32_t anchors = 0;
  for (std::size_t i = 0; i < records_.size(); ++i) {
    const Record& of = records_[i];
    const auto page = static_cast<PageId>(i);
    const std::string name = "PathStates: page " + std::to_string(i);
    bool any = of.anchor != kNone;
    if (any) {
      ++anchors;
      if (anchor_pages_[static_cast<std::size_t>(of.anchor)] != page) {
        throw std::logic_error(name + " has an anchor that is another page's");
      }
    }
    for (const std::int32_t slot : of.journals) {
      if (slot == kNone) continue;
      any = true;
      ++refs[static_cast<std::size_t>(slot)];
    }
    any = any || of.seats + of.seats_after > 0;
    if (any && pool.holders(page) == 0) throw std::logic_error(name + " is free and has states");
  }
  if (anchors != anchors_used()) {
    throw std::logic_error("PathStates: " + std::to_string(anchors) + " pages have anchors, " +
                           std::to_string(anchors_used()) + " are in use");
  }
  if (refs != journal_refs_) throw std::logic_error("PathStates: journals are counted wrongly");
}

}  // namespace dendrite
