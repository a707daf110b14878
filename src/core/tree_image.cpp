#include "core/tree_image.h"

#include <algorithm>
#include <span>

namespace dendrite {
namespace {

/// Sources are nested no deeper, and refer to earlier ones alone.
constexpr int kMostNested = 9;

/// Whether `tokens` are those of a source from `from` on.
bool has_tokens(const TreeImage& image, std::int64_t source, std::int64_t from,
                std::span<const Token> tokens) {
  if (source < 0 || source >= std::ssize(image.sources)) return false;
  const std::vector<Token>& all = image.sources[static_cast<std::size_t>(source)].tokens;
  if (from < 0 || from > std::ssize(all) - std::ssize(tokens)) return false;
  return std::ranges::equal(tokens,
                            std::span(all).subspan(static_cast<std::size_t>(from), tokens.size()));
}

std::string problem_of_sources(const TreeImage& image) {
  std::vector<int> nested;
  for (std::size_t i = 0; i < image.sources.size(); ++i) {
    const TreeImage::Source& source = image.sources[i];
    const std::string name = "source " + std::to_string(i);
    if (source.tokens.empty()) return name + " has no tokens; expected some";
    nested.push_back(1);
    std::int64_t end = 0;
    for (const TreeImage::Moved& moved : source.moved) {
      if (moved.at < end || moved.count < 1 || moved.count > std::ssize(source.tokens) - moved.at) {
        return name + " has moved tokens that are not in it, or overlap";
      }
      end = moved.at + moved.count;
      const auto tokens =
          std::span(source.tokens)
              .subspan(static_cast<std::size_t>(moved.at), static_cast<std::size_t>(moved.count));
      if (moved.source >= static_cast<std::int64_t>(i) || moved.shift < -moved.at ||
          moved.shift > std::ssize(image.tokens) + (std::int64_t{1} << 40) ||
          !has_tokens(image, moved.source, moved.at + moved.shift, tokens)) {
        return name + " has moved tokens that are not those of an earlier source";
      }
      nested.back() = std::max(nested.back(), 1 + nested[static_cast<std::size_t>(moved.source)]);
    }
    if (nested.back() > kMostNested) {
      return name + " is nested " + std::to_string(nested.back()) + " deep; expected at most " +
             std::to_string(kMostNested);
    }
  }
  return "";
}

}  // namespace

std::string problem_of(const TreeImage& image, std::int64_t page_tokens) {
  if (std::string problem = problem_of_sources(image); !problem.empty()) return problem;
  const auto of = [](std::size_t i) { return " of segment " + std::to_string(i); };
  const std::int64_t count = std::ssize(image.segments);
  std::int64_t tokens_left = std::ssize(image.tokens);
  std::vector<bool> needed(image.segments.size(), false);
  std::vector<std::int64_t> ends;
  for (std::size_t i = 0; i < image.segments.size(); ++i) {
    const TreeImage::Segment& s = image.segments[i];
    if (s.parent != TreeImage::kRoot &&
        (s.parent < 0 || s.parent >= static_cast<std::int64_t>(i))) {
      return "the parent" + of(i) + " is " + std::to_string(s.parent) +
             "; expected an earlier segment, or -1";
    }
    if (s.tokens < 1 || s.tokens > tokens_left) {
      return "the length" + of(i) + " is " + std::to_string(s.tokens) + "; expected 1 to " +
             std::to_string(tokens_left);
    }
    const auto first = static_cast<std::size_t>(std::ssize(image.tokens) - tokens_left);
    tokens_left -= s.tokens;
    if (s.computed < 0 || s.computed > s.tokens) {
      return "the computed tokens" + of(i) + " are " + std::to_string(s.computed) +
             "; expected 0 to " + std::to_string(s.tokens);
    }
    const bool is_root = s.parent == TreeImage::kRoot;
    const std::int64_t begin = is_root ? 0 : ends[static_cast<std::size_t>(s.parent)];
    ends.push_back(begin + s.tokens);
    if (s.source != TreeImage::kComputed &&
        (s.shift < -begin || s.shift > std::int64_t{1} << 40 ||
         !has_tokens(image, s.source, begin + s.shift,
                     std::span(image.tokens).subspan(first, static_cast<std::size_t>(s.tokens))))) {
      return "the tokens" + of(i) + " are not those that it was moved from";
    }
    if (s.shares_head && (s.computed == 0 || begin % page_tokens == 0)) {
      return "the first page" + of(i) + " is shared, but with nothing";
    }
    if (is_root) continue;
    const auto parent = static_cast<std::size_t>(s.parent);
    needed[parent] = true;
    if (s.computed > 0 && image.segments[parent].computed < image.segments[parent].tokens) {
      return "tokens" + of(i) + " are computed, but not all of its parent's";
    }
  }
  if (tokens_left != 0) {
    return std::to_string(tokens_left) + " tokens belong to no segment; expected none";
  }
  for (const std::int64_t tip : image.tips) {
    if (tip < 0 || tip >= count) {
      return "a branch ends with segment " + std::to_string(tip) + "; expected 0 to " +
             std::to_string(count - 1);
    }
    needed[static_cast<std::size_t>(tip)] = true;
  }
  for (std::size_t i = 0; i < needed.size(); ++i) {
    if (!needed[i]) return "no branch needs segment " + std::to_string(i);
  }
  return "";
}

std::vector<std::int64_t> segment_ends(const TreeImage& image) {
  std::vector<std::int64_t> ends;
  ends.reserve(image.segments.size());
  for (const TreeImage::Segment& s : image.segments) {
    const std::int64_t begin =
        s.parent == TreeImage::kRoot ? 0 : ends[static_cast<std::size_t>(s.parent)];
    ends.push_back(begin + s.tokens);
  }
  return ends;
}

void drop_kv(TreeImage& image) {
  for (TreeImage::Segment& segment : image.segments) {
    segment.computed = 0;
    segment.shares_head = false;
  }
}

std::int64_t page_count(const TreeImage& image, std::int64_t page_tokens) {
  const std::vector<std::int64_t> ends = segment_ends(image);
  std::int64_t pages = 0;
  for (std::size_t i = 0; i < ends.size(); ++i) {
    const TreeImage::Segment& s = image.segments[i];
    if (s.computed == 0) continue;
    const std::int64_t begin = ends[i] - s.tokens;
    const std::int64_t end = begin + s.computed;
    pages += (end + page_tokens - 1) / page_tokens - begin / page_tokens - (s.shares_head ? 1 : 0);
  }
  return pages;
}

std::vector<std::int64_t> page_slots(const TreeImage& image, std::int64_t page_tokens) {
  const std::vector<std::int64_t> ends = segment_ends(image);
  std::vector<std::int64_t> slots;
  std::vector<std::size_t> last(ends.size(), 0);  // page of each segment
  for (std::size_t i = 0; i < ends.size(); ++i) {
    const TreeImage::Segment& s = image.segments[i];
    const std::int64_t begin = ends[i] - s.tokens;
    const std::int64_t end = begin + s.computed;
    for (std::int64_t p = begin / page_tokens * page_tokens; p < end && s.computed > 0;
         p += page_tokens) {
      const bool shared = s.shares_head && p <= begin;
      if (!shared) slots.push_back(0);
      last[i] = shared ? last[static_cast<std::size_t>(s.parent)] : slots.size() - 1;
      slots[last[i]] = std::max(slots[last[i]], std::min(end - p, page_tokens));
    }
  }
  return slots;
}

}  // namespace dendrite
