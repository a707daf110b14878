#pragma once

#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "dendrite/session.h"
#include "server/token_runs.h"

namespace dendrite::server {

/// Part of a branch that was composed, with what it has of each kind.
struct ComposedPart {
  Span at{};
  std::int64_t moved = 0;
  std::int64_t repaired = 0;
};

/// How exact a branch is: exact where it has no parts.
struct Composedness {
  std::vector<ComposedPart> parts{};  ///< in their order
  std::optional<double> error{};      ///< the largest estimate, see Estimate::kl_mean

  std::int64_t moved() const;
  std::int64_t repaired() const;
  /// Of its first `length` tokens. Of a part that is cut no more is counted than it could have.
  Composedness before(std::int64_t length) const;
};

/// Whose a recent branch is: nobody else may see by its speed that it is there.
struct BranchOwner {
  BranchOwner(std::uint64_t key, std::string cache_salt = {})
      : key(key), salt(std::move(cache_salt)) {}
  std::uint64_t key;
  std::string salt;  ///< the cache_salt of its request
  bool operator==(const BranchOwner&) const = default;
};

/// Branches of the last conversations, of all keys: programs send all of one again, as it was or
/// changed somewhere, and go on from several. Where pages run out these go before those that run.
/// Safe to use from several threads.
class RecentBranches {
 public:
  /// At most so many.
  explicit RecentBranches(std::size_t most) : most_(most) {}

  /// Those that it continues are let go for it; beyond the most, the one that was kept longest ago.
  /// O(tokens of all).
  void keep(const BranchOwner& owner, Branch branch, Composedness how);
  std::size_t size() const;

  /// One to go on from with certain tokens.
  struct Found {
    Branch branch{};  ///< a fork; empty: there is none
    Composedness how{};
    std::int64_t prefix = 0;       ///< tokens that it begins alike with
    std::vector<TokenRun> runs{};  ///< and those behind, see common_runs
  };
  struct FoundBoth {
    Found exact{}, composed{};  ///< of those that are, the one that has the most of the tokens
    std::int64_t known = 0;     ///< the longest beginning of them that one that is exact has
  };
  /// Of an owner's. O(tokens of all).
  FoundBoth find(const BranchOwner& owner, std::span<const Token> tokens,
                 std::int64_t shortest_run);

 private:
  struct Kept {
    BranchOwner owner{0};
    std::vector<Token> tokens{};
    Composedness how{};
    Branch branch{};  ///< with the lock
    std::once_flag looked_at{};
    TokenPlaces places{};  ///< from then on
  };
  std::size_t most_;
  mutable std::mutex mutex_;
  std::list<std::shared_ptr<Kept>> kept_;  ///< the last one last
};

}  // namespace dendrite::server
