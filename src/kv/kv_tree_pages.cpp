// Pages of the tree: reservation, copy-on-write and flat tables. The essay in kv_tree.h says why
// this is right; (V), (O), (W) and (H) below are its invariants.
#include <algorithm>

#include "kv/kv_tree.h"

namespace dendrite {

PageId KvTree::acquire() {
  const std::optional<PageId> page = pool_.try_acquire();
  assert(page.has_value() && "reserve() counted the pages before");
  return *page;
}

/// Keeps the segment's first `keep` pages.
void KvTree::release_pages(Segment& segment, std::int64_t keep) {
  for (; segment.page_count > keep; --segment.page_count) pool_.release(segment.last_page());
  if (segment.page_count == 0 && segment.computed == segment.begin) set_head(segment);
}

void KvTree::copy_slots(PageId from, PageId to, std::int64_t tokens) {
  stores_.copy_slots(index_of(from), index_of(to), static_cast<std::int32_t>(tokens));
  ++counters_.copies_on_write;
  counters_.copied_tokens += tokens;
}

// --- what is missing

void KvTree::missing_chain(const Tip& tip, std::vector<Segment*>& out) const {
  out.clear();
  for (Segment* s = segment(tip); s != nullptr; s = s->parent) {
    if (!s->complete()) out.push_back(s);
    if (s->has_all_before()) break;
  }
  std::reverse(out.begin(), out.end());
}

/// Readies the pending part of the chain: merges ancestors that only their child refers to, and
/// gives up head pages that at() left shared and that hold nothing of the segment itself.
void KvTree::tidy_chain(const Tip& tip) {
  for (Segment* s = segment(tip); s != nullptr; s = s->parent) {
    absorb_parents(*s);
    if (s->has_all_before()) break;
    if (s->page_count > 0 && pool_.holders(s->head) > 1) release_pages(*s, 0);
  }
}

/// Requires: the segment has pending positions.
std::int64_t KvTree::pages_missing(const Segment& segment) const {
  std::int64_t missing = pages_upto(segment, segment.end()) - segment.page_count;
  for (std::int64_t i = first_write(segment); i < segment.page_count; ++i) {
    if (pool_.holders(segment.page(i)) > 1) ++missing;
  }
  return missing;
}

std::int64_t KvTree::pages_needed(const Tip& tip) {
  const std::uint64_t stamp = ++visit_;
  return pages_needed(tip, stamp);
}

/// With those of the sources that it waits for, each counted once in a walk of this stamp.
std::int64_t KvTree::pages_needed(const Tip& tip, std::uint64_t stamp) {
  tidy_chain(tip);
  std::int64_t needed = 0;
  for (Segment* s = segment(tip); s != nullptr && s->visit != stamp; s = s->parent) {
    s->visit = stamp;
    if (!s->complete()) {
      needed += pages_missing(*s);
      if (waits_for_open(*s)) needed += pages_needed(s->source->tip, stamp);
    }
    if (s->has_all_before()) break;
  }
  return needed;
}

// --- reservation

bool KvTree::reserve(const Tip& tip) {
  if (pages_needed(tip) > pool_.free_pages()) return false;
  reserve_chain(tip);
  return true;
}

void KvTree::reserve_chain(const Tip& tip) {
  missing_chain(tip, chain_);
  for (Segment* segment : chain_) reserve_segment(*segment);
  for (Segment* s = segment(tip); s != nullptr; s = s->parent) {
    if (waits_for_open(*s)) reserve_chain(s->source->tip);
    if (s->has_all_before()) break;
  }
}

/// Requires: ancestors are reserved.
void KvTree::reserve_segment(Segment& segment) {
  const std::int64_t wanted = pages_upto(segment, segment.end());
  for (std::int64_t i = first_write(segment); i < segment.page_count; ++i) {
    if (pool_.holders(segment.page(i)) > 1) copy_on_write(segment, i);
  }
  while (segment.page_count < wanted) push_page(segment, acquire());
  refresh_head(segment);
}

/// Swaps a page that pending positions will be written to for a private one with the same valid
/// slots, if any.
void KvTree::copy_on_write(Segment& segment, std::int64_t i) {
  assert(i > 0 || segment.computed > segment.begin);  // tidy_chain() saw to it
  const PageId page = segment.page(i);
  const PageId own = acquire();
  const std::int64_t first = (page_index(segment.begin) + i) * page_tokens_;
  if (segment.computed > first) {
    copy_slots(page, own, segment.computed - first);
    if (states_ != nullptr) states_->share(page, own, segment.computed - first);
  }
  pool_.release(page);
  segment.set_page(i, own);
}

/// Brings the ancestors' slots of the head page up to what is computed by now (V3).
void KvTree::refresh_head(Segment& segment) {
  if (segment.computed > segment.begin || segment.begin % page_tokens_ == 0) return;
  const Segment& parent = *segment.parent;  // its last page has the head page's index
  const std::int64_t valid = valid_end(parent);
  if (valid <= segment.head_valid) return;
  assert(pool_.holders(segment.head) == 1);
  copy_slots(parent.last_page(), segment.head, valid - page_start(segment.begin));
  segment.head_valid = valid;
}

void KvTree::unreserve(const Tip& tip) {
  for (Segment* s = segment(tip); s != nullptr; s = s->parent) {
    if (s->plan_mark < 0) {
      const std::int64_t keep = s->computed > s->begin ? pages_upto(*s, s->computed) : 0;
      release_pages(*s, keep);
    }
    if (waits_for_open(*s)) unreserve(s->source->tip);
    if (s->computed > s->begin) break;
  }
}

// --- the next token

std::optional<NextSlot> KvTree::take_next(const Tip& tip) {
  const Segment& s = *segment(tip);
  if (s.refs > 1 || s.computed == s.begin || !s.complete() || s.moved()) return std::nullopt;
  const std::int64_t i = first_write(s);
  NextSlot next;
  if (i < s.page_count) {
    next.page = s.page(i);
    if (pool_.holders(next.page) > 1) return std::nullopt;
  } else {
    if (pool_.free_pages() == 0) return std::nullopt;
    next.page = acquire();
    next.spare = true;
    spares_.push_back(next.page);
  }
  next.slot = index_of(next.page) * page_tokens_ + s.end() % page_tokens_;
  return next;
}

bool KvTree::settle_next(const Tip& tip, const NextSlot& next) {
  Segment& s = *segment(tip);
  if (s.refs == 1 && s.computed > s.begin && s.computed + 1 == s.end()) {
    const std::int64_t i = first_write(s);
    if (next.spare && i == s.page_count) {
      std::erase(spares_, next.page);
      push_page(s, next.page);
      return true;
    }
    if (i < s.page_count && s.page(i) == next.page && pool_.holders(next.page) == 1) return true;
  }
  give_back_next(next);
  return false;
}

void KvTree::give_back_next(const NextSlot& next) {
  if (next.spare) {
    std::erase(spares_, next.page);
    pool_.release(next.page);
  } else if (states_ != nullptr) {  // what a pass wrote there is of no token
    states_->rewrite(next.page, next.slot % page_tokens_);
  }
}

// --- eviction

std::uint64_t KvTree::claim(const Tip& tip) {
  const std::uint64_t stamp = ++visit_;
  claim_chain(tip, stamp);
  return stamp;
}

void KvTree::claim_chain(const Tip& tip, std::uint64_t stamp) {
  for (Segment* s = segment(tip); s != nullptr && s->visit < round_; s = s->parent) {
    s->visit = stamp;
    if (waits_for_open(*s)) claim_chain(s->source->tip, stamp);
  }
}

std::int64_t KvTree::unclaimed_pages(const Tip& tip) const {
  std::int64_t pages = 0;
  for (const Segment* s = segment(tip); s != nullptr && s->visit < round_; s = s->parent) {
    pages += s->page_count;
    if (waits_for_open(*s)) pages += unclaimed_pages(s->source->tip);
  }
  return pages;
}

/// Its own first, then those of the sources that it waits for: nobody else's claim has them.
bool KvTree::evict(const Tip& tip, std::uint64_t claim, std::int64_t pages) {
  bool took = evict_chain(tip, claim, pages);
  for (Segment* s = segment(tip); s != nullptr && s->visit == claim; s = s->parent) {
    if (!waits_for_open(*s) || segment(s->source->tip)->visit != claim) continue;
    took = evict(s->source->tip, claim, pages) || took;
    Segment* source = segment(s->source->tip);
    if (source->computed == source->begin) source->visit = 0;  // done, whoever else waits for it
  }
  return took;
}

bool KvTree::evict_chain(const Tip& tip, std::uint64_t claim, std::int64_t pages) {
  bool took = false;
  for (Segment* s = segment(tip); s != nullptr && s->visit == claim; s = s->parent) {
    if (pool_.free_pages() >= pages || s->plan_mark >= 0 || s->readers > 0 ||
        s->computed_children > 0) {
      break;
    }
    if (s->computed > s->begin) {
      if (s->moved() && s->complete()) ++s->source->waiting;
      ++counters_.evicted_segments;
      counters_.evicted_tokens += s->computed - s->begin;
      s->evicted_end = std::max(s->evicted_end, s->computed);
      s->computed = s->begin;
      s->strip->held_end = std::min(s->strip->held_end, s->begin);
      if (s->parent != nullptr) --s->parent->computed_children;
      ++epoch_;
      took = true;
    }
    release_pages(*s, 0);
  }
  return took;
}

// --- what a batch needs

std::int64_t KvTree::slot(const Segment& segment, std::int64_t position) const {
  assert(segment.begin <= position && position < segment.end());
  const std::int64_t i = page_index(position) - page_index(segment.begin);
  assert(i < segment.page_count);
  return index_of(segment.page(i)) * page_tokens_ + position % page_tokens_;
}

void KvTree::extra_stores(const Segment& segment, std::vector<ExtraSlot>& out) const {
  if (segment.computed > segment.begin || segment.page_count == 0) return;
  const std::int64_t head = index_of(segment.head) * page_tokens_;
  const Segment* owner = segment.parent;
  for (std::int64_t position = segment.begin - 1; position >= segment.head_valid; --position) {
    while (owner->begin > position) owner = owner->parent;
    assert(position >= owner->computed && "reserve() must follow the last set_computed()");
    out.push_back({owner, position, head + position % page_tokens_});
  }
}

// --- flat tables

std::span<const std::int32_t> KvTree::table(Tip& tip) {
  Segment* segment = this->segment(tip);
  PageTable* table = tip.table_;
  if (table == nullptr || table->epoch != epoch_) tip.trusted_ = 0;
  const std::int64_t trusted = tip.trusted_;
  const std::int64_t computed = this->computed(tip);

  // Look up the entries past the trusted ones: few, and in the last segments. Deeper segments hide
  // the pages of their ancestors.
  entries_.clear();
  const Segment* last = segment;
  while (last->page_count == 0 && last->parent != nullptr) last = last->parent;
  const std::int64_t size = page_index(last->begin) + last->page_count;
  std::int64_t hole = size;  // first entry that nothing provides, after unreserve() of an ancestor
  if (size > trusted) {
    entries_.resize(static_cast<std::size_t>(size - trusted), -1);
    std::int64_t limit = size;  // entries from here on are filled
    for (const Segment* s = last; s != nullptr && limit > trusted; s = s->parent) {
      const std::int64_t first = page_index(s->begin);
      const std::int64_t begin = first + (head_is_stale(*s, computed) ? 1 : 0);
      const std::int64_t end = std::min(limit, first + s->page_count);
      for (std::int64_t i = std::max(begin, trusted); i < end; ++i) {
        entries_[static_cast<std::size_t>(i - trusted)] = index_of(s->page(i - first));
      }
      if (end < limit && s->page_count > 0) hole = std::max(end, trusted);
      if (s->page_count > 0) limit = std::min(limit, begin);
    }
    if (limit > trusted) hole = trusted;
    entries_.resize(static_cast<std::size_t>(hole - trusted));
  }
  const std::int64_t count = trusted + std::ssize(entries_);

  const bool fits = table != nullptr && table->epoch == epoch_ &&
                    std::ssize(table->pages) >= count &&
                    std::equal(entries_.begin(), entries_.end(), table->pages.begin() + trusted);
  if (!fits) {
    if (table == nullptr || table->refs > 1) {
      PageTable* copy = tables_.take();
      copy->refs = 1;
      copy->stamp = ++stamps_;
      copy->settled = 0;
      copy->pages.reserve(static_cast<std::size_t>(count + 16));
      if (trusted > 0) {
        copy->pages.assign(table->pages.begin(), table->pages.begin() + trusted);
      }
      release_table(table);
      table = tip.table_ = copy;
    } else if (trusted < table->settled) {
      table->stamp = ++stamps_;
      table->settled = 0;
    }
    table->epoch = epoch_;
    table->pages.resize(static_cast<std::size_t>(trusted));
    table->pages.insert(table->pages.end(), entries_.begin(), entries_.end());
  }
  tip.trusted_ = static_cast<std::int32_t>(std::min(count, page_index(computed)));
  table->settled = std::max(table->settled, tip.trusted_);
  return {table->pages.data(), static_cast<std::size_t>(count)};
}

}  // namespace dendrite
