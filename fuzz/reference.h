#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "dendrite/dendrite.h"
#include "dendrite/error.h"
#include "fuzz/counts.h"
#include "fuzz/recipe.h"
#include "fuzz/spans.h"

namespace dendrite::fuzz {

/// Something that must never be.
struct Violation : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Throws a Violation unless `holds`.
inline void require(bool holds, const char* what) {
  if (!holds) throw Violation(what);
}

/// Throws a Violation unless `call` throws an Error.
void must_throw(const char* what, const auto& call) {
  try {
    call();
  } catch (const Error&) {
    return;
  }
  throw Violation(std::string(what).append(": nothing was thrown"));
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
  Spans spans{};
  /// Of what the prompt is the beginning; null: it was prefilled.
  std::shared_ptr<const Recipe> composed{};

  /// Of the first `length` tokens.
  Origin origin(std::int64_t length) const;
};

/// How a branch came by its random stream: the prompt and those above it, and nothing beside them.
struct Lineage {
  struct Birth {
    std::int64_t length = 0;                // of the parent's tokens that it took
    std::uint64_t forks = 0;                // that the parent had had
    std::optional<Token> token{};           // a child by this token: forks do not matter
    std::optional<std::uint64_t> stream{};  // given, so nothing else matters
  };
  std::uint64_t seed = 0;  // the session's
  std::uint64_t session_stream = 0;
  std::vector<Token> prompt;
  std::uint64_t before = 0;               // times that the session was given this prompt already
  std::optional<std::uint64_t> stream{};  // given to prefill
  std::vector<Birth> births;              // forks of forks, the first first
};

/// A branch that was made from its history alone.
struct Replay {
  Session session;
  Branch branch;
};

/// An engine that runs one branch at a time: no prefix index, no company but what it is composed
/// of, nothing forked, one thread.
class Reference {
 public:
  Reference(const std::string& model, EngineOptions options, Counts& counts);

  const Engine& engine() const { return engine_; }
  /// The prompt is prefilled, the other tokens are appended: as they came to the branch itself, so
  /// that its text state is the same, too; and under the constraints under which they came. What
  /// was composed is composed again, of branches that are made like this and gone afterwards.
  Replay replay(const History& history);
  /// The stream that the lineage's last branch has, where no other branches ever were.
  std::uint64_t stream_of(const Lineage& lineage);
  /// Its logits, computed if need be.
  std::vector<float> logits(Replay& replay);

  Counts& counts;

 private:
  using Made = std::map<const Recipe*, Branch>;

  Branch begin(Session& session, const Origin& origin, std::uint64_t stream, Made& made);
  Branch& compose(Session& session, const Recipe& recipe, Made& made);

  Engine engine_;
};

}  // namespace dendrite::fuzz
