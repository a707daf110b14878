// Statistics of the tree, and the checks of its invariants.
#include <algorithm>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <string>
#include <unordered_map>

#include "kv/kv_tree.h"

namespace dendrite {

// --- statistics

KvTreeStats KvTree::stats() const {
  KvTreeStats stats = counters_;
  stats.segments = static_cast<std::int64_t>(segments_.taken());
  stats.used_pages = pool_.used_pages();
  return stats;
}

std::int64_t KvTree::own_pages(const Tip& tip) const {
  std::int64_t own = 0;
  // A page with several holders is freed if all of them are on the part of the chain that goes.
  struct Shared {
    std::int64_t index;
    PageId page;
    std::int32_t seen;
  };
  std::vector<Shared> shared;  // in descending order of index
  for (const Segment* s = segment(tip); s != nullptr && s->refs == 1; s = s->parent) {
    for (std::int64_t i = s->page_count - 1; i >= 0; --i) {
      const PageId page = s->page(i);
      const std::int64_t index = page_index(s->begin) + i;
      const std::int32_t holders = pool_.holders(page);
      if (holders > 1) {
        auto entry = shared.rbegin();
        while (entry != shared.rend() && entry->index == index && entry->page != page) ++entry;
        if (entry == shared.rend() || entry->index != index) {
          shared.push_back({index, page, 0});
          entry = shared.rbegin();
        }
        if (++entry->seen < holders) continue;
      }
      ++own;
    }
  }
  return own;
}

std::int64_t KvTree::slots_used() const {
  // A page across a cut is listed by both halves: the lower one knows more of it.
  std::vector<std::uint8_t> filled(static_cast<std::size_t>(pool_.size()), 0);
  for_each_segment([&](const Segment& s) {
    const std::int64_t valid = valid_end(s);
    for (std::int64_t i = 0; i < s.page_count; ++i) {
      const std::int64_t first = (page_index(s.begin) + i) * page_tokens_;
      const auto slots = std::clamp<std::int64_t>(valid - first, 0, page_tokens_);
      std::uint8_t& most = filled[static_cast<std::size_t>(index_of(s.page(i)))];
      most = std::max(most, static_cast<std::uint8_t>(slots));
    }
  });
  return std::reduce(filled.begin(), filled.end(), std::int64_t{0});
}

KvUsage KvTree::usage(std::span<const Tip* const> tips) {
  ++visit_;
  KvUsage usage;
  for (const Tip* tip : tips) {
    Segment* s = segment(*tip);
    const Segment* last = s;
    while (last->page_count == 0 && last->parent != nullptr) last = last->parent;
    usage.naive_pages += page_index(last->begin) + last->page_count;
    for (; s != nullptr && s->visit != visit_; s = s->parent) {
      s->visit = visit_;
      for (std::int64_t i = 0; i < s->page_count; ++i) {
        std::uint64_t& visit = page_visit_[static_cast<std::size_t>(index_of(s->page(i)))];
        if (visit != visit_) ++usage.unique_pages;  // a page across a cut is listed by both halves
        visit = visit_;
      }
    }
  }
  const std::int64_t page_bytes = stores_.kv.shape().token_bytes() * page_tokens_;
  usage.unique_bytes = usage.unique_pages * page_bytes;
  usage.naive_bytes = usage.naive_pages * page_bytes;
  return usage;
}

// --- checks

std::string KvTree::dump(std::span<const std::pair<const Tip*, std::string>> ends) const {
  std::unordered_map<const Segment*, std::size_t> number;
  std::vector<const Segment*> live;
  segments_.for_each([&](const Segment& s) {
    if (s.refs != 0) live.push_back(&s);
  });
  std::sort(live.begin(), live.end(),
            [](const Segment* a, const Segment* b) { return a->begin < b->begin; });
  for (std::size_t i = 0; i < live.size(); ++i) number[live[i]] = i;

  std::ostringstream out;
  out << "KvTree: " << live.size() << " segments, " << pool_.used_pages() << " of " << pool_.size()
      << " pages used, " << page_tokens_ << " tokens a page\n";
  for (const auto& [tip, who] : ends) {
    out << "  " << who << " ends at #" << number.at(segment(*tip)) << '\n';
  }
  for (const Segment* s : live) {
    out << "  #" << number[s] << " parent ";
    if (s->parent == nullptr) {
      out << '-';
    } else if (number.contains(s->parent)) {
      out << '#' << number[s->parent];
    } else {
      out << "DEAD";
    }
    out << " positions [" << s->begin << ", " << s->end() << ") computed " << s->computed
        << " head_valid " << s->head_valid << " refs " << s->refs << " plan_mark " << s->plan_mark
        << (s->moved() ? " moved by " + std::to_string(s->shift) : "")
        << (s->logits ? " logits" : "") << " pages";
    for (std::int64_t i = 0; i < s->page_count; ++i) {
      const PageId page = s->page(i);
      out << ' ' << index_of(page);
      const bool known = index_of(page) >= 0 && index_of(page) < pool_.size();
      if (!known || pool_.holders(page) != 1) {
        out << '(' << (known ? pool_.holders(page) : -1) << " holders)";
      }
    }
    out << '\n';
  }
  return out.str();
}

/// What strip.h says of the segment's place in its strip, and what held_paths.h needs.
void KvTree::check_strip(const Segment& s) const {
  const auto require = [&](bool holds, const char* what) {
    if (holds) return;
    throw std::logic_error("KvTree: the strip of the segment at " + std::to_string(s.begin) + " " +
                           what + "\n" + dump());
  };
  const Strip& strip = *s.strip;
  const bool is_first = s.parent == nullptr || s.parent->strip != &strip;
  require(is_first ? strip.begin == s.begin : strip.begin < s.begin, "begins elsewhere");
  const Segment* last = strip.last;
  while (last != nullptr && last != &s && last->strip == &strip) last = last->parent;
  require(last == &s, "does not end below it");
  if (s.computed < s.end() || strip.last == &s) {
    require(s.computed == s.begin ? strip.held_end <= s.begin : strip.held_end == s.computed,
            "holds other positions than are computed");
  }
  std::uint64_t path = path_before(s);
  for (std::int64_t p = s.begin; p < s.computed; ++p) {
    path = next_path(path, s, p);
    require(strip.hash(p) == path, "has a wrong hash");
  }
}

/// Each moved segment's source is one that has its tokens and counts it.
void KvTree::check_sources() const {
  std::unordered_map<const MoveSource*, MoveSource> counted;
  const auto require = [&](bool holds, const char* what) {
    if (!holds)
      throw std::logic_error(std::string("KvTree: a moved segment ") + what + "\n" + dump());
  };
  for_each_segment([&](const Segment& s) {
    require(s.readers == 0, "or its source is read outside of a step");
    if (!s.moved()) return;
    const Lineage& lineage = *s.source->lineage;
    const std::int64_t from = s.begin + s.shift;
    require(0 <= from && from + s.size <= lineage.length(), "is of positions that are not there");
    require(std::ranges::equal(s.tokens(), std::span(lineage.tokens())
                                               .subspan(static_cast<std::size_t>(from),
                                                        static_cast<std::size_t>(s.size))),
            "has other tokens than its source");
    ++counted[s.source].refs;
    if (!s.complete()) ++counted[s.source].waiting;
  });
  require(counted.size() == source_by_lineage_.size() && counted.size() == sources_.taken(),
          "has left its source behind");
  for (const auto& [source, expected] : counted) {
    require(source->refs == expected.refs, "is not counted by its source");
    require(source->waiting == expected.waiting, "waits, or not, and its source does not know");
    require(source->tip.empty() || source->waiting > 0, "waits no more, and its source is held");
    require(source->tip.empty() || length(source->tip) == source->lineage->length(),
            "has a source that is not at its end");
  }
}

void KvTree::check_invariants(std::span<const Tip* const> of_others) const {
  std::vector<const Tip*> tips(of_others.begin(), of_others.end());
  for_each_source([&](const Tip& tip) { tips.push_back(&tip); });
  check_sources();
  const auto require = [&](bool holds, const std::string& what) {
    if (!holds) throw std::logic_error("KvTree: " + what + "\n" + dump());
  };
  const auto name = [](const Segment& s) {
    return "segment [" + std::to_string(s.begin) + ", " + std::to_string(s.end()) + ")";
  };
  pool_.check_invariants();  // I3
  if (states_ != nullptr) states_->check_invariants(pool_);

  std::unordered_map<const Segment*, std::int32_t> refs;  // expected, of every live segment
  std::unordered_map<const Segment*, std::int32_t> computed_children;
  segments_.for_each([&](const Segment& s) {
    if (s.refs != 0) refs[&s] = 0;
  });
  require(refs.size() == segments_.taken(), "a segment without references was not freed");

  std::unordered_map<const PageTable*, std::int32_t> table_refs;
  for (const Tip* tip : tips) {
    require(!tip->empty(), "a live tip is empty");
    require(refs.contains(tip->segment_), "a tip ends at a freed segment");
    ++refs[tip->segment_];
    if (tip->table_ != nullptr) ++table_refs[tip->table_];
  }

  std::unordered_map<const Strip*, std::int32_t> strip_refs;
  std::vector<std::int32_t> holders(static_cast<std::size_t>(pool_.size()), 0);
  std::vector<std::int32_t> cuts(holders.size(), 0);  // times a page lies across a cut
  for (const auto& [segment, unused] : refs) {
    const Segment& s = *segment;
    const Segment* parent = s.parent;
    if (parent == nullptr) {
      require(s.begin == 0, name(s) + " has no parent");
    } else {
      require(refs.contains(parent), name(s) + " has a freed parent");
      ++refs[parent];
      if (s.computed > s.begin) ++computed_children[parent];
      // I2: parents have tokens and end where the child begins, so `begin` falls along a chain.
      require(parent->end() == s.begin && parent->size > 0 && s.size > 0,
              name(s) + " does not follow its parent, " + name(*parent));
      require(parent->salt == s.salt, name(s) + " has another salt than its parent");
    }
    if (s.size > 0) {
      ++strip_refs[s.strip];
      check_strip(s);
    }
    require(s.begin <= s.computed && s.computed <= s.end(), name(s) + ": computed out of range");
    require(s.computed == s.begin || parent == nullptr || parent->complete(),
            name(s) + " is computed past an ancestor that is not");  // (O)
    require(s.page_count <= std::max<std::int64_t>(pages_upto(s, s.end()), 0),
            name(s) + " has pages past its end");
    require(s.computed == s.begin || s.page_count >= pages_upto(s, s.computed),
            name(s) + " lacks pages of computed positions");  // I4
    if (s.computed > s.begin) {
      require(s.head_valid == s.begin, name(s) + " lacks its ancestors' slots");  // V2
    } else {
      require(page_start(s.begin) <= s.head_valid && s.head_valid <= s.begin &&
                  (s.page_count > 0 || s.head_valid == page_start(s.begin)),
              name(s) + ": head_valid out of range");
    }
    for (std::int64_t i = 0; i < s.page_count; ++i) {
      const PageId page = s.page(i);
      require(index_of(page) >= 0 && index_of(page) < pool_.size(), name(s) + ": no such page");
      ++holders[static_cast<std::size_t>(index_of(page))];
    }
    if (s.page_count == 0) continue;
    // (H): another holder of the head page is an ancestor that ends inside the page.
    for (const Segment* a = parent; a != nullptr && a->end() > page_start(s.begin); a = a->parent) {
      if (a->page_count == 0 || a->last_page() != s.head) continue;
      ++cuts[static_cast<std::size_t>(index_of(s.head))];
      break;
    }
  }
  require(strip_refs.size() == strips_.taken(), "a strip without segments was not freed");
  for (const auto& [strip, expected] : strip_refs) {
    require(strip->refs == expected, "a strip's reference count is wrong");
  }
  for (const auto* pages : {&taken_, &spares_}) {
    for (const PageId page : *pages) ++holders[static_cast<std::size_t>(index_of(page))];
  }
  for (const auto& [segment, expected] : refs) {  // I1
    require(segment->refs == expected, name(*segment) + " has " + std::to_string(expected) +
                                           " references, but counts " +
                                           std::to_string(segment->refs));
    const auto children = computed_children.find(segment);
    require(
        segment->computed_children == (children == computed_children.end() ? 0 : children->second),
        name(*segment) + " counts its computed children wrong");
  }
  for (std::size_t i = 0; i < holders.size(); ++i) {
    const std::string page = "page " + std::to_string(i);
    const std::int32_t counted = pool_.holders(static_cast<PageId>(i));
    require(counted == holders[i], page + " is listed by " + std::to_string(holders[i]) +
                                       " segments, but counts " + std::to_string(counted));
    require(holders[i] <= cuts[i] + 1, page + " is shared by segments that no cut made");  // (H)
  }

  require(table_refs.size() == tables_.taken(), "a table without references was not freed");
  for (const auto& [table, expected] : table_refs) {
    require(table->refs == expected, "a page table's reference count is wrong");
  }
  std::vector<std::int32_t> mapped;
  for (const Tip* tip : tips) {  // I4
    const std::int64_t computed = this->computed(*tip);
    const std::int64_t valid = page_count(computed);
    mapped.assign(static_cast<std::size_t>(valid), -1);
    for (const Segment* s = tip->segment_; s != nullptr; s = s->parent) {
      for (std::int64_t i = head_is_stale(*s, computed) ? 1 : 0; i < s->page_count; ++i) {
        const std::int64_t index = page_index(s->begin) + i;
        if (index >= valid || mapped[static_cast<std::size_t>(index)] >= 0) continue;
        mapped[static_cast<std::size_t>(index)] = index_of(s->page(i));
      }
    }
    require(std::find(mapped.begin(), mapped.end(), -1) == mapped.end(),
            "a tip at " + name(*tip->segment_) + " has computed positions without a page");
    if (tip->table_ == nullptr || tip->table_->epoch != epoch_) continue;
    require(
        tip->trusted_ <= valid && tip->trusted_ <= std::ssize(tip->table_->pages) &&
            std::equal(mapped.begin(), mapped.begin() + tip->trusted_, tip->table_->pages.begin()),
        "the cached table of a tip at " + name(*tip->segment_) + " is out of date");
  }
}

}  // namespace dendrite
