#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <unordered_map>
#include <vector>

#include "dendrite/types.h"

namespace dendrite {

/// What a session's branches have said so far, as one trie: prompts, texts, texts of branches that
/// are gone. Looked up by the last tokens of a text: where else did they stand, and what came then?
/// Not thread-safe.
class History {
 public:
  /// The end of some text.
  using Place = std::int32_t;
  static constexpr Place kStart = 0;

  History();

  /// The text at `from` goes on with the token.
  Place add(Place from, Token token);
  /// Places whose texts end like the one at `at`, and go on: as many tokens alike as can be found,
  /// the latest first, at most kMost. The most alike is the text itself, where another went on.
  struct Match {
    std::vector<Place> places;
    std::size_t level = 0;  // 0: the whole text; else kLengths[level - 1] tokens
  };
  static constexpr std::size_t kLevels = 4;
  Match find(Place at) const;

  /// What came after a place: the token, where it leads to, and how often it came.
  struct Next {
    Token token = 0;
    Place place = kStart;
    std::int32_t times = 0;
  };
  void next_of(Place place, std::vector<Next>& out) const;

  std::int64_t size() const { return std::ssize(nodes_) - 1; }  ///< tokens
  /// Forgets all: places of an epoch before mean nothing any more.
  void clear();
  std::uint32_t epoch() const { return epoch_; }

  /// Numbers of last tokens by which texts are looked up, the most first.
  static constexpr std::array<int, kLevels - 1> kLengths = {12, 6, 3};
  static constexpr std::size_t kMost = 8;

 private:
  struct Node {
    Token token = 0;
    Place parent = kStart;
    Place first_child = kStart;  // kStart: none
    Place next_sibling = kStart;
    std::int32_t times = 0;
    /// The place before with the same last tokens, for each of kLengths.
    std::array<Place, kLengths.size()> alike{};
  };

  const Node& node(Place place) const { return nodes_[static_cast<std::size_t>(place)]; }
  void enter(Place place);
  std::array<std::uint64_t, kLengths.size()> hashes(Place place) const;

  std::uint32_t epoch_ = 0;  // from 1
  std::vector<Node> nodes_;
  std::unordered_map<std::uint64_t, Place> children_;  // by place and token
  std::array<std::unordered_map<std::uint64_t, Place>, kLengths.size()> latest_;  // by hash
};

/// Where a text ends in a history, as far as it was added.
struct HistoryEnd {
  History::Place place = History::kStart;
  std::int64_t length = 0;  // tokens
  std::uint32_t epoch = 0;  // of the history; 0: of none
};

}  // namespace dendrite
