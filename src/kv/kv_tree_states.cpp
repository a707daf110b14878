// What recurrent layers need of a path, and where it is kept.
#include <algorithm>

#include "kv/kv_tree.h"

namespace dendrite {
namespace {

/// The segments of a chain by positions that are asked for from its end upwards.
class Owners {
 public:
  Owners(const Segment* segment, int page_shift) : segment_(segment), page_shift_(page_shift) {}

  /// Positions from `begin` on up to one that is asked for are in one segment and page. Nothing:
  /// the segment has no page for them.
  struct Piece {
    std::int64_t begin = 0;
    std::optional<PageId> page;
  };
  Piece piece(std::int64_t position) {
    while (segment_->begin > position) segment_ = segment_->parent;
    const std::int64_t index = position >> page_shift_;
    const std::int64_t i = index - (segment_->begin >> page_shift_);
    Piece piece{std::max(segment_->begin, index << page_shift_), std::nullopt};
    if (i < segment_->page_count) piece.page = segment_->page(i);
    return piece;
  }

 private:
  const Segment* segment_;
  int page_shift_;
};

}  // namespace

void KvTree::own_pages(const Tip& tip, std::int64_t begin, std::int64_t end,
                       std::vector<PageId>& out) const {
  Owners owners(segment(tip), page_shift_);
  out.resize(static_cast<std::size_t>(end - begin));
  while (end > begin) {
    const Owners::Piece piece = owners.piece(end - 1);
    assert(piece.page.has_value() && "a position that was computed has a page");
    const std::int64_t first = std::max(begin, piece.begin);
    std::fill_n(out.begin() + (first - begin), end - first, *piece.page);
    end = first;
  }
}

StateStart KvTree::state_start(const Tip& tip, std::int64_t length) {
  Owners owners(segment(tip), page_shift_);
  StateStart start;
  for (std::int64_t chunk = length / kChunkTokens;; --chunk) {
    const std::int64_t begin = chunk * kChunkTokens;
    const std::int64_t end = std::min(length, begin + kChunkTokens);
    start.position = end;
    for (std::int64_t last = end; last > begin;) {
      const Owners::Piece piece = owners.piece(last - 1);  // a page has a chunk's positions
      for (std::int64_t p = last - 1; p >= piece.begin; --p) {
        const std::int32_t slot =
            piece.page ? states_->journal(*piece.page, p - begin) : PathStates::kNone;
        start.journals[static_cast<std::size_t>(p - begin)] = slot;
        if (slot == PathStates::kNone) start.position = p;
      }
      last = piece.begin;
    }
    start.known_count = start.position - begin;
    if (chunk == 0) return start;
    const std::optional<PageId> before = owners.piece(begin - 1).page;
    start.anchor = before ? states_->anchor(*before) : PathStates::kNone;
    if (start.anchor != PathStates::kNone) return start;
  }
}

std::vector<StatePlace> KvTree::states_at_end(const Tip& tip) {
  std::vector<StatePlace> places;
  const std::int64_t end = computed(tip);
  if (states_ == nullptr || end == 0) return places;
  const StateStart start = state_start(tip, end - 1);
  const std::int64_t begin = start.known_begin();
  const std::int64_t first = std::max<std::int64_t>(0, begin - 1);
  std::vector<PageId> pages;
  own_pages(tip, first, end, pages);
  const auto page = [&](std::int64_t position) {
    return pages[static_cast<std::size_t>(position - first)];
  };
  if (start.anchor != PathStates::kNone) {
    places.push_back({page(begin - 1), StatePlace::kAnchor, start.anchor});
  }
  for (std::int64_t p = begin; p < start.position; ++p) {
    places.push_back(
        {page(p), p % kChunkTokens, start.journals[static_cast<std::size_t>(p - begin)]});
  }
  const PageId last = page(end - 1);
  const std::int64_t offset = (end - 1) % kChunkTokens;
  const std::int32_t journal = states_->journal(last, offset);
  if (start.position == end - 1 && journal != PathStates::kNone) {
    places.push_back({last, offset, journal});
  } else if (end % kChunkTokens == 0 && states_->anchor(last) != PathStates::kNone) {
    places.push_back({last, StatePlace::kAnchor, states_->anchor(last)});
  }
  return places;
}

}  // namespace dendrite
