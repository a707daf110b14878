#include "server/token_runs.h"

#include <algorithm>
#include <tuple>

namespace dendrite::server {
namespace {

constexpr std::uint64_t kBase = 0x9E3779B97F4A7C15;
constexpr std::size_t kMostPlaces = 8;  // that are tried for one window

/// SplitMix64's last steps (Steele, Lea and Flood 2014).
std::uint64_t mixed(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

std::uint64_t word_of(Token token) {
  return static_cast<std::uint64_t>(static_cast<std::uint32_t>(token)) + 1;
}

bool is_before(const TokenPlaces::Place& a, const TokenPlaces::Place& b) {
  return std::tie(a.hash, a.at) < std::tie(b.hash, b.at);
}

}  // namespace

TokenPlaces::TokenPlaces(std::span<const Token> tokens) {
  // Of a window t0 … t15 the sum of t_i kBase^(15 - i), from one window to the next.
  std::uint64_t leaving = 1;
  for (std::int64_t i = 1; i < kWindow; ++i) leaving *= kBase;
  std::uint64_t sum = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    constexpr auto kSize = static_cast<std::size_t>(kWindow);
    if (i >= kSize) sum -= word_of(tokens[i - kSize]) * leaving;
    sum = sum * kBase + word_of(tokens[i]);
    const std::uint64_t hash = mixed(sum);
    if (i + 1 >= kSize && hash % kEvery == 0) {
      in_order_.push_back({hash, static_cast<std::int64_t>(i + 1 - kSize)});
    }
  }
  by_hash_ = in_order_;
  std::ranges::sort(by_hash_, is_before);
}

std::int64_t TokenPlaces::common(const TokenPlaces& other) const {
  std::int64_t count = 0;
  auto mine = by_hash_.begin();
  auto theirs = other.by_hash_.begin();
  while (mine != by_hash_.end() && theirs != other.by_hash_.end()) {
    if (mine->hash == theirs->hash) {
      ++count;
      ++mine;
      ++theirs;
    } else if (mine->hash < theirs->hash) {
      ++mine;
    } else {
      ++theirs;
    }
  }
  return count * kEvery;
}

std::vector<std::int64_t> TokenPlaces::with(std::uint64_t hash, std::int64_t from,
                                            std::size_t most) const {
  std::vector<std::int64_t> out;
  const auto middle = std::ranges::lower_bound(by_hash_, Place{hash, from}, is_before);
  for (auto at = middle; at != by_hash_.end() && at->hash == hash && out.size() < most; ++at) {
    out.push_back(at->at);
  }
  for (auto at = middle; at != by_hash_.begin() && out.size() < most;) {
    if ((--at)->hash != hash) break;
    out.push_back(at->at);
  }
  return out;
}

std::int64_t common_prefix(std::span<const Token> a, std::span<const Token> b) {
  return std::ranges::mismatch(a, b).in1 - a.begin();
}

std::vector<TokenRun> common_runs(std::span<const Token> from, const TokenPlaces& from_places,
                                  std::span<const Token> to, const TokenPlaces& to_places,
                                  std::int64_t prefix, std::int64_t shortest) {
  const auto token = [](std::span<const Token> of, std::int64_t at) {
    return of[static_cast<std::size_t>(at)];
  };
  std::vector<TokenRun> runs;
  std::int64_t done = prefix;      // of the new one
  std::int64_t expected = prefix;  // of the old one: what is behind the last run
  for (const TokenPlaces::Place& window : to_places.in_order()) {
    if (window.at < done) continue;
    TokenRun longest;
    for (const std::int64_t place : from_places.with(window.hash, expected, kMostPlaces)) {
      TokenRun run{place, window.at, 0};
      const std::int64_t most = std::min(std::ssize(from) - run.from, std::ssize(to) - run.to);
      while (run.count < most &&
             token(from, run.from + run.count) == token(to, run.to + run.count)) {
        ++run.count;
      }
      while (run.count > 0 && run.from > prefix && run.to > done &&
             token(from, run.from - 1) == token(to, run.to - 1)) {
        --run.from;
        --run.to;
        ++run.count;
      }
      if (run.from >= prefix && run.count > longest.count) longest = run;
    }
    if (longest.count == 0) continue;
    // (The windows in one that is too short come to the same.)
    done = longest.to + longest.count;
    if (longest.count < shortest) continue;
    expected = longest.from + longest.count;
    runs.push_back(longest);
  }
  return runs;
}

}  // namespace dendrite::server
