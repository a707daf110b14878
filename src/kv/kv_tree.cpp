// The tree of tokens: tips, segments, splitting, merging and freeing. Pages are in
// kv_tree_pages.cpp, checks and statistics in kv_tree_check.cpp.
#include "kv/kv_tree.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "dendrite/error.h"

namespace dendrite {

namespace {

// A recycled table keeps at most this much of its memory.
constexpr std::size_t kKeptEntries = 4096;

}  // namespace

KvTree::KvTree(const PathStores& stores, PageWatch* watch)
    : page_tokens_(stores.kv.shape().page_tokens),
      page_shift_(std::countr_zero(static_cast<std::uint64_t>(page_tokens_))),
      stores_(stores),
      pool_(static_cast<std::int32_t>(stores.kv.shape().pages), watch),
      page_visit_(static_cast<std::size_t>(stores.kv.shape().pages), 0) {
  if (stores.states == nullptr) return;
  if (page_tokens_ != kChunkTokens) {
    throw Error("pages have " + std::to_string(page_tokens_) + " tokens; expected " +
                std::to_string(kChunkTokens) + " with a model that has recurrent layers");
  }
  states_ = std::make_unique<PathStates>(stores.states->shape(), stores.kv.shape().pages);
  pool_.add(*states_);
}

// --- segments

/// Requires: the salt is the parent's, if there is one.
Segment* KvTree::new_segment(Segment* parent, Salt salt) {
  Segment* segment = segments_.take();
  assert(segment->refs == 0 && segment->size == 0 && segment->page_count == 0);
  segment->parent = parent;
  segment->begin = parent != nullptr ? parent->end() : 0;
  segment->computed = segment->begin;
  segment->salt = salt;
  set_head(*segment);
  segment->refs = 1;
  return segment;
}

void KvTree::recycle(Segment* segment) {
  release_pages(*segment, 0);
  if (segment->moved()) leave_source(*segment);
  if (segment->strip != nullptr) leave_strip(*segment);
  segment->parent = nullptr;
  segment->size = 0;
  segment->refs = 0;
  segment->computed_children = 0;
  segment->evicted_end = 0;
  segment->plan_mark = -1;
  segment->readers = 0;
  segment->logits.reset();
  segments_.give_back(segment);
}

void KvTree::release(Segment* segment) {
  while (segment != nullptr) {  // a loop: chains may be 100,000 deep
    assert(segment->refs > 0);
    if (--segment->refs > 0) return;
    Segment* parent = segment->parent;
    if (parent != nullptr && segment->computed > segment->begin) --parent->computed_children;
    recycle(segment);
    segment = parent;
  }
}

void KvTree::release_table(PageTable* table) {
  if (table == nullptr || --table->refs > 0) return;
  table->pages.clear();
  if (table->pages.capacity() > kKeptEntries) table->pages.shrink_to_fit();
  tables_.give_back(table);
}

/// Nothing of the head page is known to be valid (V3), or there is no such thing.
void KvTree::set_head(Segment& segment) {
  segment.head_valid = page_start(segment.begin);
}

// --- tips

Tip KvTree::root(Salt salt) {
  Tip tip;
  tip.segment_ = new_segment(nullptr, salt);
  return tip;
}

void KvTree::drop(Tip& tip) {
  release_table(std::exchange(tip.table_, nullptr));
  tip.trusted_ = 0;
  release(std::exchange(tip.segment_, nullptr));
}

void KvTree::append(Tip& tip, std::span<const Token> tokens) {
  if (tokens.empty()) return;
  Segment* segment = this->segment(tip);
  if (segment->refs > 1 || segment->moved()) segment = open_child(tip);
  push_tokens(*segment, tokens);
  segment->logits.reset();
}

/// The tip's segment is not to be changed: it gets an empty one behind it.
Segment* KvTree::open_child(Tip& tip) {
  Segment* segment = tip.segment_;
  if (segment->size == 0) {  // a forked empty sequence: nothing to share
    --segment->refs;
    segment = new_segment(nullptr, segment->salt);
  } else {
    segment = new_segment(segment, segment->salt);  // takes over the tip's reference on the parent
  }
  return tip.segment_ = segment;
}

Tip KvTree::at(const Tip& tip, std::int64_t length) {
  const std::int64_t whole = this->length(tip);
  if (length < 0 || length > whole) {
    throw Error("at: length " + std::to_string(length) + ", expected 0 to " +
                std::to_string(whole) + " (the branch's length)");
  }
  if (length == whole) return fork(tip);
  if (length == 0) return root(salt(tip));
  Segment* segment = tip.segment_;
  while (segment->begin >= length) segment = segment->parent;
  Tip upper = cut(segment, length);
  // Pages that end at or before `length` are the same for both tips: segments that begin at or past
  // `length` hide none of them.
  upper.table_ = tip.table_;
  upper.trusted_ =
      static_cast<std::int32_t>(std::min<std::int64_t>(tip.trusted_, page_index(length)));
  if (upper.table_ != nullptr) ++upper.table_->refs;
  return upper;
}

/// A tip at `length`, which lies in the segment or is its end.
Tip KvTree::cut(Segment* segment, std::int64_t length) {
  assert(segment->begin < length && length <= segment->end());
  if (segment->end() != length) {
    split(*segment, length);
    segment = segment->parent;
  }
  Tip upper;
  upper.segment_ = segment;
  ++segment->refs;
  return upper;
}

/// Cuts `lower` at `length`; a new segment, its parent, takes the positions below.
void KvTree::split(Segment& lower, std::int64_t length) {
  assert(lower.begin < length && length < lower.end());
  ++counters_.splits;
  const bool waited = !lower.complete();
  // `lower` gives its reference on the parent to `upper`, and holds the only one on `upper`.
  Segment* upper = new_segment(lower.parent, lower.salt);
  lower.parent = upper;
  upper->begin = lower.begin;
  upper->size = length - lower.begin;
  upper->strip = lower.strip;
  ++lower.strip->refs;
  upper->computed = std::min(lower.computed, length);
  upper->computed_children = lower.computed > length ? 1 : 0;
  upper->evicted_end = std::min(lower.evicted_end, length);
  upper->head_valid = lower.head_valid;

  // A page across the cut gets one more holder (H). Pages of pending positions stay where they are,
  // too: a batch that is under way may be writing them. Those past the first stay in the strip.
  const std::int64_t pages = lower.page_count;
  const std::int64_t upper_pages = std::min(pages, pages_upto(*upper, length));
  const std::int64_t lower_first = std::min(pages, page_index(length) - page_index(lower.begin));
  upper->head = lower.head;
  upper->page_count = static_cast<std::int32_t>(upper_pages);
  if (lower_first < upper_pages) pool_.retain(upper->last_page());
  if (lower_first < pages) lower.head = lower.page(lower_first);
  lower.page_count = static_cast<std::int32_t>(pages - lower_first);

  const std::int64_t valid = valid_end(lower);  // of the whole, before the cut
  lower.size = lower.end() - length;
  lower.begin = length;
  lower.computed = std::max(lower.computed, length);
  if (lower.moved()) share_source(*upper, lower, waited);
  set_head(lower);
  if (lower.page_count > 0) lower.head_valid = std::clamp(valid, lower.head_valid, length);
}

/// Merges ancestors that only this segment refers to into it. The object stays, so that tips and
/// children need not know.
void KvTree::absorb_parents(Segment& segment) {
  while (segment.plan_mark < 0 && segment.readers == 0 && segment.parent != nullptr &&
         segment.parent->refs == 1 && segment.parent->plan_mark < 0 &&
         segment.parent->readers == 0 && segment.parent->made_like(segment)) {
    absorb_parent(segment);
    ++counters_.absorbed;
  }
}

void KvTree::absorb_parent(Segment& segment) {
  Segment& parent = *segment.parent;
  const bool has_computed = segment.computed > segment.begin;
  if (segment.moved()) leave_source(parent);  // of the same source
  const bool waited = !segment.complete();
  if (!has_computed) {
    release_pages(segment, 0);  // nothing in them; the parent's last page is written in place
  } else if (segment.begin % page_tokens_ != 0) {
    assert(parent.complete());
    if (states_ != nullptr && parent.page_count > 0) {
      states_->share(parent.last_page(), segment.head, segment.begin % page_tokens_);
    }
    release_pages(parent, parent.page_count - 1);
  }
  share_strip(parent, segment);
  if (parent.page_count > 0) {
    if (segment.page_count > 0) segment.strip->page(page_index(segment.begin)) = segment.head;
    segment.head = parent.head;
  }
  segment.page_count += std::exchange(parent.page_count, 0);  // moved: no count changes
  segment.begin = parent.begin;
  segment.size += parent.size;
  if (!has_computed) segment.computed = parent.computed;
  if (segment.moved()) segment.source->waiting += (segment.complete() ? 0 : 1) - (waited ? 1 : 0);
  segment.head_valid = parent.head_valid;
  segment.evicted_end = std::max(segment.evicted_end, parent.evicted_end);
  segment.parent = parent.parent;  // with the parent's reference on it
  --std::exchange(parent.strip, nullptr)->refs;
  recycle(&parent);
}

// --- tokens

Token KvTree::token(const Tip& tip, std::int64_t position) const {
  assert(position >= 0 && position < length(tip));
  const Segment* segment = tip.segment_;
  while (segment->begin > position) segment = segment->parent;
  return segment->token(position);
}

void KvTree::copy_tokens(const Tip& tip, std::int64_t begin, std::int64_t end, Token* out) const {
  assert(0 <= begin && begin <= end && end <= length(tip));
  for (const Segment* s = tip.segment_; s != nullptr && s->end() > begin; s = s->parent) {
    const std::int64_t from = std::max(begin, s->begin);
    const std::int64_t to = std::min(end, s->end());
    if (from < to) std::copy_n(&s->strip->token(from), to - from, out + (from - begin));
  }
}

std::vector<Token> KvTree::tokens(const Tip& tip, std::int64_t begin, std::int64_t end) const {
  end = std::clamp<std::int64_t>(end, 0, length(tip));
  begin = std::clamp<std::int64_t>(begin, 0, end);
  std::vector<Token> out(static_cast<std::size_t>(end - begin));
  copy_tokens(tip, begin, end, out.data());
  return out;
}

std::int64_t KvTree::computed(const Tip& tip) const {
  const Segment* segment = this->segment(tip);
  // By (O) only a segment with nothing computed leaves open whether its parent is complete.
  while (segment->computed == segment->begin && segment->parent != nullptr &&
         !segment->parent->complete()) {
    segment = segment->parent;
  }
  return segment->computed;
}

}  // namespace dendrite
