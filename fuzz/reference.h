#pragma once

#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "dendrite/dendrite.h"
#include "fuzz/counts.h"

namespace dendrite::fuzz {

/// Something that must never be.
struct Violation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Throws a Violation unless `holds`.
inline void require(bool holds, const char* what) {
  if (!holds) throw Violation(what);
}

/// K and V of the first positions of a branch: [layer][K, V][position, kv_heads, head_dim].
std::vector<float> kv_of(const Branch& branch, std::int64_t positions);
/// Positions with K and V.
std::int64_t computed_of(const Branch& branch);
/// The next-token logits if they are there, else nothing.
std::vector<float> logits_of(const Branch& branch);

template <typename T>
bool same_bits(T a, T b) {
  return std::memcmp(&a, &b, sizeof(T)) == 0;
}

/// Throws a Violation unless both hold the same bits, none of them a NaN's.
void require_same_bits(std::span<const float> got, std::span<const float> expected,
                       const std::string& what);

/// What is needed to do again what a branch did, elsewhere.
struct History {
  std::uint64_t seed = 0;  // the session's
  std::uint64_t stream = 0;
  std::int64_t prompt_length = 0;
  std::vector<Token> tokens;
};

/// A branch that was made from its history alone.
struct Replay {
  Session session;
  Branch branch;
};

/// An engine that runs one branch at a time: no prefix index, no company, nothing forked, one
/// thread.
class Reference {
 public:
  Reference(const std::string& model, EngineOptions options, Counts& counts);

  const Engine& engine() const { return engine_; }
  /// The prompt is prefilled, the other tokens are appended: as they came to the branch itself, so
  /// that its text state is the same, too.
  Replay replay(const History& history);
  /// Its logits, computed if need be.
  std::vector<float> logits(Replay& replay);

  Counts& counts;

 private:
  Engine engine_;
};

}  // namespace dendrite::fuzz
