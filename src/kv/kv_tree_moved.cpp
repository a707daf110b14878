// Segments whose K and V are moved from elsewhere: where these come from, and who waits for that.
// kv_tree.h says at "Moved segments" what they are.
#include <algorithm>

#include "kv/kv_tree.h"

namespace dendrite {

// --- sources

/// The record of a lineage, with one more segment, which waits.
MoveSource& KvTree::source_of(const std::shared_ptr<const Lineage>& lineage) {
  MoveSource*& source = source_by_lineage_[lineage.get()];
  if (source == nullptr) {
    source = sources_.take();
    source->lineage = lineage;
  }
  ++source->refs;
  ++source->waiting;
  return *source;
}

/// Of a segment that was cut in two. `waited`: it was not complete before.
void KvTree::share_source(Segment& upper, const Segment& lower, bool waited) {
  upper.source = lower.source;
  upper.shift = lower.shift;
  ++upper.source->refs;
  upper.source->waiting +=
      (upper.complete() ? 0 : 1) + (lower.complete() ? 0 : 1) - (waited ? 1 : 0);
}

/// The segment is moved from nowhere afterwards.
void KvTree::leave_source(Segment& segment) {
  MoveSource& source = *std::exchange(segment.source, nullptr);
  segment.shift = 0;
  --source.refs;
  if (!segment.complete()) stop_waiting(source);
  if (source.refs > 0) return;
  source_by_lineage_.erase(source.lineage.get());
  source.lineage.reset();
  sources_.give_back(&source);
}

/// One segment less does. (What it refers to may end with that, and what that refers to: sources
/// are nested no deeper than K may be rotated.)
void KvTree::stop_waiting(MoveSource& source) {
  if (--source.waiting == 0) drop(source.tip);
}

void KvTree::open_sources(const Tip& tip) {
  for (Segment* s = segment(tip); s != nullptr; s = s->parent) {
    if (s->moved() && !s->complete()) {
      MoveSource& source = *s->source;
      if (source.tip.empty()) source.tip = tip_of(*source.lineage);
      open_sources(source.tip);
    }
    if (s->computed > s->begin) break;
  }
}

// --- growing

void KvTree::append_moved(Tip& tip, const std::shared_ptr<const Lineage>& source, std::int64_t from,
                          std::int64_t count) {
  if (count == 0) return;
  assert(0 <= from && 0 < count && from + count <= source->length());
  Segment* segment = this->segment(tip);
  if (segment->size > 0 || segment->refs > 1) segment = open_child(tip);
  push_tokens(*segment,
              std::span(source->tokens())
                  .subspan(static_cast<std::size_t>(from), static_cast<std::size_t>(count)));
  segment->source = &source_of(source);
  segment->shift = from - segment->begin;
}

Tip KvTree::tip_of(const Lineage& lineage) {
  const Place held = find_held(lineage);
  Tip tip = held.length > 0 ? at(held) : root(lineage.salt());
  std::int64_t position = held.length;
  const auto append_computed = [&](std::int64_t end) {
    if (position >= end) return;
    append(tip, std::span(lineage.tokens())
                    .subspan(static_cast<std::size_t>(position),
                             static_cast<std::size_t>(end - position)));
    position = end;
  };
  for (const MovedSpan& span : lineage.moved()) {
    const std::int64_t end = span.at + span.count;
    if (end <= position) continue;
    append_computed(span.at);
    append_moved(tip, span.source, position + span.shift, end - position);
    position = end;
  }
  append_computed(lineage.length());
  return tip;
}

Lineage KvTree::lineage(const Tip& tip, std::int64_t length) const {
  std::vector<const Segment*> chain;
  for (const Segment* s = segment(tip); s != nullptr; s = s->parent) {
    if (s->begin < length) chain.push_back(s);
  }
  std::ranges::reverse(chain);
  Lineage lineage(salt(tip));
  for (const Segment* s : chain) {
    const std::int64_t count = std::min(s->end(), length) - s->begin;
    if (s->moved()) {
      lineage.add_moved(s->source->lineage, s->begin + s->shift, count);
    } else {
      lineage.add(s->tokens().first(static_cast<std::size_t>(count)));
    }
  }
  return lineage;
}

// --- what a batch needs

std::int64_t KvTree::pending_rows(const Tip& tip) const {
  std::int64_t rows = 0;
  for (const Segment* s = segment(tip); s != nullptr; s = s->parent) {
    if (!s->moved()) rows += s->end() - s->computed;
    if (waits_for_open(*s)) rows += pending_rows(s->source->tip);
    if (s->computed > s->begin) break;
  }
  return rows;
}

bool KvTree::can_move(const Segment& segment) const {
  const MoveSource& source = *segment.source;
  return !source.tip.empty() && computed(source.tip) >= segment.end() + segment.shift;
}

void KvTree::add_reader(const Segment& segment, std::int64_t begin, std::int64_t end, int readers) {
  for (Segment* s = this->segment(segment.source->tip); s != nullptr; s = s->parent) {
    if (s->end() <= begin + segment.shift) break;
    if (s->begin < end + segment.shift) s->readers += readers;
  }
}

// --- what a path is

int KvTree::moves(const Tip& tip) const {
  int most = 0;
  for (const Segment* s = segment(tip); s != nullptr; s = s->parent) {
    if (!s->moved()) continue;
    most = std::max(most, 1 + s->source->lineage->moves(s->end() + s->shift));
  }
  return most;
}

std::int64_t KvTree::computed_at_end(const Tip& tip) const {
  for (const Segment* s = segment(tip); s != nullptr; s = s->parent) {
    if (s->moved()) return length(tip) - s->end();
  }
  return length(tip);
}

std::int64_t KvTree::common_length(const Tip& a, const Tip& b) const {
  const Segment* one = segment(a);
  const Segment* other = segment(b);
  while (one != other && one != nullptr && other != nullptr) {
    const Segment*& longer = one->end() >= other->end() ? one : other;
    longer = longer->parent;
  }
  return one == other && one != nullptr ? one->end() : 0;
}

}  // namespace dendrite
