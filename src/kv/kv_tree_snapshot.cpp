// The tree as plain data and back. What is written down of a segment is its tokens, how many of
// them are computed, and whether its head page is its parent's last one; the rest follows:
//
//   pages       Those of computed positions alone. What reserve() gave beyond is dropped, as
//               unreserve() would: the next reserve() gives it again.
//   head_valid  `begin` where something is computed (V2), else there are no pages and it is the
//               head page's start (V3).
//   sharing     By (H) and (O) a head page with computed positions of its segment is shared with
//   the
//               parent or with nobody above. Were it otherwise, the image would hold the page
//               twice: larger, and as right.
#include <algorithm>
#include <unordered_map>

#include "kv/kv_tree.h"

namespace dendrite {

namespace {

/// The index of a lineage in the image, where it is put behind what it refers to.
std::int64_t index_of_source(TreeImage& image, const Lineage& lineage,
                             std::unordered_map<const Lineage*, std::int64_t>& known) {
  if (const auto found = known.find(&lineage); found != known.end()) return found->second;
  TreeImage::Source source;
  source.salt = lineage.salt();
  source.tokens = lineage.tokens();
  for (const MovedSpan& span : lineage.moved()) {
    const std::int64_t from = index_of_source(image, *span.source, known);
    source.moved.push_back({span.at, span.count, span.shift, from});
  }
  image.sources.push_back(std::move(source));
  return known[&lineage] = std::ssize(image.sources) - 1;
}

std::vector<std::shared_ptr<const Lineage>> lineages_of(const TreeImage& image) {
  std::vector<std::shared_ptr<const Lineage>> lineages;
  for (const TreeImage::Source& source : image.sources) {
    auto lineage = std::make_shared<Lineage>(source.salt);
    const auto add_upto = [&](std::int64_t end) {
      const auto begin = static_cast<std::size_t>(lineage->length());
      lineage->add(std::span(source.tokens).subspan(begin, static_cast<std::size_t>(end) - begin));
    };
    for (const TreeImage::Moved& moved : source.moved) {
      add_upto(moved.at);
      lineage->add_moved(lineages[static_cast<std::size_t>(moved.source)], moved.at + moved.shift,
                         moved.count);
    }
    add_upto(std::ssize(source.tokens));
    lineages.push_back(std::move(lineage));
  }
  return lineages;
}

}  // namespace

TreeImage KvTree::image(std::span<const Tip* const> tips, std::vector<PageSlots>& pages) const {
  TreeImage image;
  pages.clear();
  std::unordered_map<const Segment*, std::int64_t> index;
  std::vector<std::size_t> last_page;  // of each segment, in `pages`
  std::unordered_map<const Lineage*, std::int64_t> sources;
  std::vector<const Segment*> chain;
  for (const Tip* tip : tips) {
    chain.clear();
    for (const Segment* s = segment(*tip); s != nullptr && !index.contains(s); s = s->parent) {
      chain.push_back(s);
    }
    std::reverse(chain.begin(), chain.end());
    for (const Segment* s : chain) {
      index[s] = std::ssize(image.segments);
      TreeImage::Segment& out = image.segments.emplace_back();
      out.tokens = s->size;
      out.computed = s->computed - s->begin;
      image.tokens.insert(image.tokens.end(), s->tokens().begin(), s->tokens().end());
      if (s->moved()) {
        out.source = index_of_source(image, *s->source->lineage, sources);
        out.shift = s->shift;
      }
      if (s->parent != nullptr) {
        out.parent = index.at(s->parent);
      } else {
        out.salt = s->salt;
      }
      const std::int64_t count = out.computed > 0 ? pages_upto(*s, s->computed) : 0;
      for (std::int64_t i = 0; i < count; ++i) {
        const PageId page = s->page(i);
        const std::int64_t first = (page_index(s->begin) + i) * page_tokens_;
        const auto slots = static_cast<std::int32_t>(std::min(s->computed - first, page_tokens_));
        if (i == 0 && s->begin != first) {
          PageSlots& above = pages[last_page[static_cast<std::size_t>(out.parent)]];
          out.shares_head = above.page == page;
          if (out.shares_head) {
            above.slots = std::max(above.slots, slots);
            last_page.push_back(last_page[static_cast<std::size_t>(out.parent)]);
            continue;
          }
        }
        if (i == 0) last_page.push_back(0);
        last_page.back() = pages.size();
        pages.push_back({page, slots});
      }
      if (count == 0) last_page.push_back(0);  // nobody asks: no child is computed, either
    }
    image.tips.push_back(index.at(segment(*tip)));
  }
  return image;
}

bool KvTree::take_pages(std::int64_t count, std::vector<PageId>& out) {
  assert(taken_.empty());
  out.clear();
  if (count > pool_.free_pages()) return false;
  for (std::int64_t i = 0; i < count; ++i) taken_.push_back(acquire());
  out = taken_;
  return true;
}

void KvTree::give_back_pages() {
  for (const PageId page : taken_) pool_.release(page);
  taken_.clear();
}

std::vector<Tip> KvTree::build(const TreeImage& image, std::span<const PageId> pages) {
  // (Without pages it may be of other pages than this tree's.)
  assert(pages.empty() || problem_of(image, page_tokens_).empty());
  assert(std::ranges::equal(pages, taken_));
  assert(pages.empty() || std::ssize(pages) == dendrite::page_count(image, page_tokens_));
  std::vector<Segment*> made;
  made.reserve(image.segments.size());
  const std::vector<std::shared_ptr<const Lineage>> lineages = lineages_of(image);
  const std::span<const Token> tokens = image.tokens;
  std::size_t token = 0;
  auto page = pages.begin();
  for (const TreeImage::Segment& from : image.segments) {
    Segment* parent =
        from.parent == TreeImage::kRoot ? nullptr : made[static_cast<std::size_t>(from.parent)];
    Segment* segment = new_segment(parent, parent == nullptr ? from.salt : parent->salt);
    segment->refs = 0;  // children and tips come below
    if (parent != nullptr) ++parent->refs;
    push_tokens(*segment, tokens.subspan(token, static_cast<std::size_t>(from.tokens)));
    token += static_cast<std::size_t>(from.tokens);
    if (from.source != TreeImage::kComputed) {
      segment->source = &source_of(lineages[static_cast<std::size_t>(from.source)]);
      segment->shift = from.shift;
    }
    made.push_back(segment);
    if (pages.empty() || from.computed == 0) continue;
    const std::int64_t computed = segment->begin + from.computed;
    if (from.shares_head) {
      push_page(*segment, parent->last_page());
      pool_.retain(segment->head);
    }
    while (segment->page_count < pages_upto(*segment, computed)) push_page(*segment, *page++);
    set_computed(*segment, computed);
  }
  taken_.clear();  // they are the segments' now
  std::vector<Tip> tips(image.tips.size());
  for (std::size_t i = 0; i < tips.size(); ++i) {
    tips[i].segment_ = made[static_cast<std::size_t>(image.tips[i])];
    ++tips[i].segment_->refs;
  }
  return tips;
}

}  // namespace dendrite
