#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "dendrite/types.h"
#include "kv/strip.h"

namespace dendrite {

class Lineage;

/// K and V of positions [at, at + count) are those of positions [at + shift, at + shift + count) of
/// another lineage, with K rotated from there to here.
struct MovedSpan {
  std::int64_t at = 0;
  std::int64_t count = 0;
  std::int64_t shift = 0;
  std::shared_ptr<const Lineage> source;
};

/// What K and V of a path depend on, and nothing else: its tokens, and which of them were moved
/// here from where. Two paths of equal lineages have the same bits, whatever was shared, evicted or
/// computed in between. Plain data: it refers to no page. Const once somebody else has it.
class Lineage {
 public:
  explicit Lineage(Salt salt = 0) : salt_(salt) {}

  /// No bit depends on it: it keeps equal texts apart.
  Salt salt() const { return salt_; }
  std::int64_t length() const { return std::ssize(tokens_); }
  const std::vector<Token>& tokens() const { return tokens_; }
  /// In ascending order; neighbours that continue each other are one.
  const std::vector<MovedSpan>& moved() const { return moved_; }
  /// The path's hash up to each position (strip.h).
  const std::vector<std::uint64_t>& paths() const { return paths_; }
  std::uint64_t path_before(std::int64_t position) const;

  void add(std::span<const Token> tokens);
  /// The next `count` positions are the source's from `from` on. Requires: from + count <=
  /// source->length().
  void add_moved(const std::shared_ptr<const Lineage>& source, std::int64_t from,
                 std::int64_t count);
  /// Positions [begin, end) of another one, as they are there: tokens, and what was moved from
  /// where it was moved. Where this one is the same as the other up to `begin`, and begin ==
  /// length(), they depend on the same.
  void add_like(const Lineage& other, std::int64_t begin, std::int64_t end);

  /// How often at most K of the first `length` positions, or of what they were computed behind, was
  /// rotated: 0 where nothing of it was moved.
  int moves(std::int64_t length) const;
  int moves() const { return moves(length()); }

 private:
  Salt salt_;
  std::vector<Token> tokens_;
  std::vector<MovedSpan> moved_;
  std::vector<std::uint64_t> paths_;
  std::vector<int> moves_;  // of each of moved_ and those before it
};

}  // namespace dendrite
