#include "core/tree_image.h"

namespace dendrite {

std::string problem_of(const TreeImage& image, std::int64_t page_tokens) {
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
    tokens_left -= s.tokens;
    if (s.computed < 0 || s.computed > s.tokens) {
      return "the computed tokens" + of(i) + " are " + std::to_string(s.computed) +
             "; expected 0 to " + std::to_string(s.tokens);
    }
    const bool is_root = s.parent == TreeImage::kRoot;
    const std::int64_t begin = is_root ? 0 : ends[static_cast<std::size_t>(s.parent)];
    ends.push_back(begin + s.tokens);
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

}  // namespace dendrite
