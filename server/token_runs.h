#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "dendrite/types.h"

// What two token sequences have in common, wherever it stands.
namespace dendrite::server {

/// Where a sequence has which tokens, by hashes of windows of 16. Of all windows those are taken
/// whose hash says so, one in 16: the same text has the same ones at whatever position.
class TokenPlaces {
 public:
  struct Place {
    std::uint64_t hash = 0;
    std::int64_t at = 0;  ///< where its window begins
  };
  static constexpr std::int64_t kWindow = 16;
  static constexpr std::int64_t kEvery = 16;

  TokenPlaces() = default;
  /// O(tokens).
  explicit TokenPlaces(std::span<const Token> tokens);

  /// Tokens that the other has as well, about: kEvery for each window.
  std::int64_t common(const TokenPlaces& other) const;
  /// In the order of the sequence.
  const std::vector<Place>& in_order() const { return in_order_; }
  /// Up to `most` places with this hash, those at `from` and behind first.
  std::vector<std::int64_t> with(std::uint64_t hash, std::int64_t from, std::size_t most) const;

 private:
  std::vector<Place> in_order_;
  std::vector<Place> by_hash_;
};

/// Tokens [from, from + count) of an old sequence are [to, to + count) of a new one.
struct TokenRun {
  std::int64_t from = 0;
  std::int64_t to = 0;
  std::int64_t count = 0;
  bool operator==(const TokenRun&) const = default;
};

/// Tokens that both begin with.
std::int64_t common_prefix(std::span<const Token> a, std::span<const Token> b);

/// Runs of at least `shortest` tokens (128 or more: shorter ones may have no window that is looked
/// at) that the new sequence has of the old one, both behind their first `prefix` tokens, in the
/// new one's order; the old one's may be any. From the beginning on, each is the longest of what
/// was looked at. O(tokens of both).
std::vector<TokenRun> common_runs(std::span<const Token> from, const TokenPlaces& from_places,
                                  std::span<const Token> to, const TokenPlaces& to_places,
                                  std::int64_t prefix, std::int64_t shortest);

}  // namespace dendrite::server
