#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace dendrite::fuzz {

inline constexpr std::size_t kMostOperations = 32;  // rows of the table, at most

/// What a run did. Plain numbers, since they live in memory that two processes share.
struct Counts {
  std::int64_t operations[kMostOperations] = {};  // by row of the table
  std::int64_t programs = 0;
  std::int64_t forks = 0;
  std::int64_t rewinds = 0;
  std::int64_t tokens_generated = 0;
  std::int64_t tokens_taken = 0;     // of them, drawn ahead of their call
  std::int64_t tokens_accepted = 0;  // of them, from drafts
  std::int64_t copies_on_write = 0;
  std::int64_t evictions = 0;           // segments that lost K and V
  std::int64_t regenerated_tokens = 0;  // and were computed again
  std::int64_t preemptions = 0;         // branches that lost them while they decoded
  std::int64_t compositions = 0;
  std::int64_t moved_tokens = 0;      // of compositions, and their sources
  std::int64_t restores = 0;          // sessions that came back from a file
  std::int64_t refusals = 0;          // calls that got no pages
  std::int64_t cut_calls = 0;         // ended by a budget or cancelled
  std::int64_t agent_operations = 0;  // of several threads at once
  std::int64_t timeouts = 0;          // of calls that went on
  std::int64_t refused_tokens = 0;    // appends that a constraint refused
  std::int64_t dead_ends = 0;         // where a constraint left nothing
  std::int64_t forced_tokens = 0;     // decoded, where a constraint left one
  std::int64_t masks_asked = 0;       // token by token
  std::int64_t replayed_tokens = 0;   // tokens that the reference engine computed or drew
  std::int64_t comparisons = 0;       // of a branch, or of a result, with its replay
  std::int64_t compared_values = 0;   // K, V, logits and log-probs in them

  Counts& operator+=(const Counts& other) {
    using Numbers = std::array<std::int64_t, sizeof(Counts) / sizeof(std::int64_t)>;
    auto sums = std::bit_cast<Numbers>(*this);
    const auto more = std::bit_cast<Numbers>(other);
    for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += more[i];
    return *this = std::bit_cast<Counts>(sums);
  }
};

}  // namespace dendrite::fuzz
