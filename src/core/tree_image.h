#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "dendrite/types.h"

namespace dendrite {

/// A token tree as plain data: what KvTree hands out to be saved, and builds again.
///
/// Pages have no ids here. They are numbered 0, 1, ... in the order in which the segments need
/// them: a segment with K and V has the pages from that of its first position to that of its last
/// computed one, all new but perhaps the first (shares_head). A segment without has none.
struct TreeImage {
  static constexpr std::int64_t kRoot = -1;
  static constexpr std::int64_t kComputed = -1;

  struct Segment {
    std::int64_t parent = kRoot;  // index of an earlier segment; its end is this one's begin
    std::int64_t tokens = 0;      // at least 1
    std::int64_t computed = 0;    // of them, from the first on, have K and V
    /// The first page is the parent's last one: the two were cut from one segment inside it. Else
    /// the page is a copy with the ancestors' slots in it.
    bool shares_head = false;
    /// K and V come from positions of that lineage, position + shift: they are moved, not computed.
    std::int64_t source = kComputed;
    std::int64_t shift = 0;
    std::uint64_t salt = 0;  // of one without a parent: keeps equal texts apart
  };
  /// What moved segments come from: tokens, and what of them was moved itself.
  struct Moved {
    std::int64_t at = 0;
    std::int64_t count = 0;
    std::int64_t shift = 0;
    std::int64_t source = 0;  // index of an earlier lineage
  };
  struct Source {
    std::vector<Token> tokens;
    std::vector<Moved> moved;  // in ascending order, apart from each other
    std::uint64_t salt = 0;
  };
  std::vector<Source> sources;
  std::vector<Segment> segments;   // parents before children; each has a child or a tip
  std::vector<Token> tokens;       // of all segments, one segment after the other
  std::vector<std::int64_t> tips;  // the segment that each branch ends with
};

/// What is wrong with an image from outside; "" if all that KvTree::build requires at this page
/// size holds. O(segments).
std::string problem_of(const TreeImage& image, std::int64_t page_tokens);

/// Pages that a sound image's segments need at this page size, each counted once.
std::int64_t page_count(const TreeImage& image, std::int64_t page_tokens);

/// Of each of those pages, how many slots hold K and V that some segment sees: [0, slots).
std::vector<std::int64_t> page_slots(const TreeImage& image, std::int64_t page_tokens);

/// The same tree without K and V: no segment needs a page.
void drop_kv(TreeImage& image);

/// Where each segment ends: the length of a branch whose tip it is.
std::vector<std::int64_t> segment_ends(const TreeImage& image);

}  // namespace dendrite
