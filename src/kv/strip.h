#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "dendrite/types.h"
#include "kv/page_pool.h"

namespace dendrite {

struct Segment;

/// Keeps texts apart: a path is another one where its text has another salt. 0: none.
using Salt = std::uint64_t;

/// Hash of a path: of its salt and all tokens from position 0 to the one whose hash it is. What
/// comes before the first token is this.
constexpr std::uint64_t root_path(Salt salt) {
  const std::uint64_t x = salt * 0x9E3779B97F4A7C15;
  return 0x243F6A8885A308D3 ^ x ^ x >> 32;
}
constexpr std::uint64_t path_hash(std::uint64_t before, Token token) {
  std::uint64_t x = (before ^ static_cast<std::uint32_t>(token)) * 0x9E3779B97F4A7C15;
  x ^= x >> 32;
  x *= 0xD6E8FEB86659FD93;
  return x ^ x >> 29;
}

/// The same of a token whose K and V were moved here: `source` is the path's hash where they were
/// computed, up to it. (It stands for the token, too.)
constexpr std::uint64_t moved_path_hash(std::uint64_t before, std::uint64_t source) {
  std::uint64_t x = (before ^ (source << 23 | source >> 41)) * 0xC2B2AE3D27D4EB4F;
  x ^= x >> 29;
  x *= 0x9FB21C651E98DF25;
  return x ^ x >> 32;
}

/// Memory for what segments have one of for each position or page index, found by these numbers
/// themselves. A segment has a strip of its own, until at() cuts it: then both halves use the same
/// one, and nothing is moved. Each value belongs to one segment: tokens and hashes to the one that
/// the position is in, a page id to the one that has it as a page other than its first (that one is
/// in the segment). So what a segment writes no other sees.
///
/// The segments of a strip follow each other on one chain, without gaps: at() cuts, nothing is
/// inserted, and only the last can die. So when the last one grows, what is behind it is free.
class alignas(64) Strip {
 public:
  std::int32_t refs = 0;  // segments
  std::int32_t page_shift = 0;
  std::int64_t begin = 0;     // of the first segment
  Segment* last = nullptr;    // the last segment
  std::int64_t held_end = 0;  // K and V of positions [begin, held_end) are held by its segments

  Token& token(std::int64_t position) const { return tokens()[position - first_]; }
  /// The path's up to this position; of computed positions only.
  std::uint64_t& hash(std::int64_t position) const { return hashes()[position - first_]; }
  PageId& page(std::int64_t index) const { return pages()[index - (first_ >> page_shift)]; }

  bool holds(std::int64_t position, std::uint64_t path) const {
    return begin <= position && position < held_end && hash(position) == path;
  }

  /// A fresh strip gets room for positions [from, to).
  void open(std::int64_t from, std::int64_t to);
  /// Room for positions [from, to), too; those of [begin, end) keep their values. Amortised: what
  /// is moved is at most as much as has been added at that end since the last move.
  void extend(std::int64_t from, std::int64_t to, std::int64_t end);
  /// Gives memory back where [begin, end), all that is left, is less than a quarter of it.
  void trim(std::int64_t end);
  /// Back to fresh; keeps little memory.
  void close();

 private:
  void move_to(std::int64_t first, std::int64_t capacity, std::int64_t end);
  std::uint64_t* hashes() const { return reinterpret_cast<std::uint64_t*>(block_.get()); }
  Token* tokens() const { return reinterpret_cast<Token*>(hashes() + capacity_); }
  PageId* pages() const { return reinterpret_cast<PageId*>(tokens() + capacity_); }

  std::unique_ptr<std::byte[]> block_;  // hashes, tokens, page ids
  std::int64_t first_ = 0;              // position of the first place
  std::int64_t capacity_ = 0;           // positions
};

}  // namespace dendrite
