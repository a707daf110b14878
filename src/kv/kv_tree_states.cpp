// What recurrent layers need of a path, and where it is kept.
#include <algorithm>

#include "kv/kv_tree.h"

namespace dendrite {
namespace {

/// The segments of a chain by positions that are asked for from its end upwards.
class Owners {
 public:
  Owners(const Segment* segment, int page_shift) : segment_(segment), page_shift_(page_shift) {}

  /// Nothing: the position's segment has no page for it.
  std::optional<PageId> page(std::int64_t position) {
    while (segment_->begin > position) segment_ = segment_->parent;
    const std::int64_t i = (position >> page_shift_) - (segment_->begin >> page_shift_);
    if (i >= segment_->page_count) return std::nullopt;
    return segment_->page(i);
  }

 private:
  const Segment* segment_;
  int page_shift_;
};

}  // namespace

PageId KvTree::own_page(const Tip& tip, std::int64_t position) const {
  const std::optional<PageId> page = Owners(segment(tip), page_shift_).page(position);
  assert(page.has_value() && "a position that was computed has a page");
  return *page;
}

StateStart KvTree::state_start(const Tip& tip, std::int64_t length) {
  Owners owners(segment(tip), page_shift_);
  StateStart start;
  for (std::int64_t chunk = length / kChunkTokens;; --chunk) {
    const std::int64_t begin = chunk * kChunkTokens;
    const std::int64_t end = std::min(length, begin + kChunkTokens);
    start.position = end;
    start.known.assign(static_cast<std::size_t>(end - begin), PathStates::kNone);
    for (std::int64_t p = end - 1; p >= begin; --p) {
      const std::optional<PageId> page = owners.page(p);
      const std::int32_t slot = page ? states_->journal(*page, p - begin) : PathStates::kNone;
      start.known[static_cast<std::size_t>(p - begin)] = slot;
      if (slot == PathStates::kNone) start.position = p;
    }
    start.known.resize(static_cast<std::size_t>(start.position - begin));
    if (chunk == 0) return start;
    const std::optional<PageId> before = owners.page(begin - 1);
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
  if (start.anchor != PathStates::kNone) {
    places.push_back({own_page(tip, begin - 1), StatePlace::kAnchor, start.anchor});
  }
  for (std::int64_t p = begin; p < start.position; ++p) {
    places.push_back(
        {own_page(tip, p), p % kChunkTokens, start.known[static_cast<std::size_t>(p - begin)]});
  }
  const PageId last = own_page(tip, end - 1);
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
