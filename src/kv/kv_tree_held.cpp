// Strips of the tree, and who holds K and V of which tokens: what they are is in strip.h and
// held_paths.h.
#include <algorithm>
#include <bit>

#include "kv/kv_tree.h"

namespace dendrite {

// --- strips

/// Requires: nobody else refers to the segment, so it is its strip's last.
void KvTree::push_tokens(Segment& segment, std::span<const Token> tokens) {
  const std::int64_t from = segment.end();
  const std::int64_t to = from + std::ssize(tokens);
  if (segment.strip == nullptr) {
    segment.strip = strips_.take();
    segment.strip->page_shift = page_shift_;
    segment.strip->open(from, to);
    segment.strip->last = &segment;
    segment.strip->refs = 1;
  } else {
    assert(segment.strip->last == &segment);
    segment.strip->extend(from, to, from);
  }
  std::ranges::copy(tokens, &segment.strip->token(from));
  segment.size = to - segment.begin;
}

/// The segment dies, or has moved: its place in the strip is nobody's.
void KvTree::leave_strip(Segment& segment) {
  Strip& strip = *std::exchange(segment.strip, nullptr);
  if (--strip.refs == 0) {
    strip.close();
    strips_.give_back(&strip);
  } else if (strip.last == &segment) {
    strip.last = segment.parent;
    strip.held_end = std::min(strip.held_end, segment.begin);
    strip.trim(segment.begin);
  } else {
    strip.begin = std::max(strip.begin, segment.end());
  }
}

/// Two neighbours on a chain come to use one strip. What the shorter one has is moved: so a value
/// moves at most log2(length) times, whatever order segments are merged in.
void KvTree::share_strip(Segment& upper, Segment& lower) {
  if (upper.strip == lower.strip) return;  // at() cut them
  const bool up = lower.size <= upper.size;
  Segment& moved = up ? lower : upper;
  Strip& to = up ? *upper.strip : *lower.strip;
  to.extend(moved.begin, moved.end(), to.last->end());
  if (to.held_end <= to.begin) to.held_end = 0;  // nothing: not what is moved there, either
  to.begin = std::min(to.begin, moved.begin);
  move_values(moved, to);
  leave_strip(moved);
  moved.strip = &to;
  ++to.refs;
  if (up) to.last = &lower;
  enter_held(moved, moved.begin);
}

void KvTree::move_values(const Segment& from, Strip& to) {
  std::ranges::copy(from.tokens(), &to.token(from.begin));
  for (std::int64_t p = from.begin; p < from.computed; ++p) to.hash(p) = from.strip->hash(p);
  const std::int64_t first = from.begin >> to.page_shift;
  for (std::int64_t i = 1; i < from.page_count; ++i) to.page(first + i) = from.page(i);
}

// --- who holds what

/// The segment's computed positions from `begin` on are in its strip now.
void KvTree::enter_held(const Segment& segment, std::int64_t begin) {
  if (segment.computed == segment.begin) return;
  Strip& strip = *segment.strip;
  strip.held_end = std::max(strip.held_end, segment.computed);
  for (std::int64_t p = begin; p < segment.computed; ++p) held_.add(strip.hash(p), p, &strip);
}

/// The path's hash up to the parent's end. Requires: the parent is complete.
std::uint64_t KvTree::path_before(const Segment& segment) {
  return segment.parent == nullptr ? root_path(segment.salt)
                                   : segment.parent->strip->hash(segment.begin - 1);
}

/// The path's hash up to the segment's last computed position, if there is one.
std::uint64_t KvTree::computed_path(const Segment& segment) {
  if (segment.computed == segment.begin) return path_before(segment);
  return segment.strip->hash(segment.computed - 1);
}

/// The path's hash up to one of the segment's positions; `before`: up to the one before it.
std::uint64_t KvTree::next_path(std::uint64_t before, const Segment& segment,
                                std::int64_t position) {
  if (!segment.moved()) return path_hash(before, segment.token(position));
  const auto there = static_cast<std::size_t>(position + segment.shift);
  return moved_path_hash(before, segment.source->lineage->paths()[there]);
}

void KvTree::set_computed(Segment& segment, std::int64_t position) {
  assert(segment.computed <= position && position <= segment.end());
  if (position == segment.computed) return;
  assert(segment.parent == nullptr || segment.parent->complete());
  assert(pages_upto(segment, position) <= segment.page_count);
  const std::int64_t before = segment.computed;
  std::uint64_t path = computed_path(segment);
  for (std::int64_t p = before; p < position; ++p) {
    segment.strip->hash(p) = path = next_path(path, segment, p);
  }
  if (segment.parent != nullptr && before == segment.begin) ++segment.parent->computed_children;
  segment.computed = position;
  segment.head_valid = segment.begin;  // the rest of the head page came by extra_stores
  enter_held(segment, before);
  if (segment.moved() && segment.complete()) stop_waiting(*segment.source);
}

std::int64_t KvTree::held_elsewhere(const Segment& segment, std::int64_t begin, std::int64_t end) {
  chain_.clear();
  const Segment* top = &segment;
  for (; top->computed == top->begin && top->parent != nullptr && !top->parent->complete();
       top = top->parent) {
    chain_.push_back(const_cast<Segment*>(top));
  }
  std::uint64_t path = computed_path(*top);
  std::int64_t position = top->computed;
  for (const Segment* s = top;; s = chain_.back(), chain_.pop_back()) {
    for (; position < std::min(s->end(), end); ++position) {
      path = next_path(path, *s, position);
      if (held_.find(path, position) == nullptr) return std::max<std::int64_t>(0, position - begin);
    }
    if (chain_.empty()) return end - begin;
  }
}

KvTree::Place KvTree::find_held(std::span<const Token> tokens, Salt salt) {
  paths_.clear();
  return find_longest(
      std::ssize(tokens),
      [&](std::int64_t length) {
        while (std::ssize(paths_) < length) {
          const std::uint64_t before = paths_.empty() ? root_path(salt) : paths_.back();
          paths_.push_back(path_hash(before, tokens[paths_.size()]));
        }
        return paths_[static_cast<std::size_t>(length - 1)];
      },
      [&](const Segment& segment, std::int64_t length) {
        return follows(segment, salt, tokens.first(static_cast<std::size_t>(length)), {});
      });
}

/// The longest prefix that somebody holds, of something of `size` positions with these paths.
template <typename PathUpTo, typename Follows>
KvTree::Place KvTree::find_longest(std::int64_t size, PathUpTo path_upto, Follows is_its) {
  const auto is_held = [&](std::int64_t length) {
    return held_.find(path_upto(length), length - 1) != nullptr;
  };
  // Who holds a prefix holds all shorter ones: steps that double, then halves.
  std::int64_t held = 0;
  std::int64_t not_held = size + 1;
  for (std::int64_t step = 1; held < size && not_held > size; step *= 2) {
    const std::int64_t length = std::min(held + step, size);
    (is_held(length) ? held : not_held) = length;
  }
  while (not_held - held > 1) {
    const std::int64_t middle = held + (not_held - held) / 2;
    (is_held(middle) ? held : not_held) = middle;
  }
  if (held == 0) return {};
  Place place;
  held_.find_if(path_upto(held), held - 1, [&](const Strip& strip) {
    Segment* segment = strip.last;
    while (segment->begin >= held) segment = segment->parent;
    const bool has_logits = segment->end() == size && segment->logits != nullptr;
    const bool better = place.segment == nullptr || has_logits;
    if (!better || !is_its(*segment, held)) return false;
    place = {segment, held};
    return held < size || has_logits;
  });
  return place;
}

KvTree::Place KvTree::find_held(const Lineage& lineage) {
  const auto path_upto = [&](std::int64_t length) { return lineage.path_before(length); };
  return find_longest(lineage.length(), path_upto,
                      [&](const Segment& segment, std::int64_t length) {
                        const auto count = static_cast<std::size_t>(length);
                        return follows(segment, lineage.salt(),
                                       std::span(lineage.tokens()).first(count), lineage.paths());
                      });
}

/// Whether salt and tokens are the path's that ends in the segment: hashes may be equal by chance.
/// `paths`: of a lineage, up to each position; what was moved was moved by the same paths, which
/// stand for all that they depend on. None: nothing was moved.
bool KvTree::follows(const Segment& segment, Salt salt, std::span<const Token> tokens,
                     std::span<const std::uint64_t> paths) {
  if (segment.salt != salt) return false;
  for (const Segment* s = &segment; s != nullptr; s = s->parent) {
    const auto begin = static_cast<std::size_t>(s->begin);
    if (!std::ranges::equal(tokens.subspan(begin), s->tokens().first(tokens.size() - begin))) {
      return false;
    }
    if (paths.empty() && s->moved()) return false;
    for (std::size_t p = begin; p < std::min(tokens.size(), paths.size()); ++p) {
      if (s->strip->hash(static_cast<std::int64_t>(p)) != paths[p]) return false;
    }
    tokens = tokens.first(begin);
  }
  return true;
}

}  // namespace dendrite
