#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <vector>

#include "dendrite/constraint.h"
#include "grammar/vocabulary.h"

struct dn_matcher;

namespace dendrite {

/// Matchers that share a lexer, whose states are made as texts need them: one of them computes at a
/// time. Grammars have a few families, so that as many threads can compute.
struct MatcherFamily {
  struct Free {
    void operator()(dn_matcher* matcher) const;
  };
  using Handle = std::unique_ptr<dn_matcher, Free>;

  std::mutex mutex;
  Handle seed;                       // at the start of the grammar
  std::atomic<int> matchers = 0;     // that are alive
  std::atomic<bool> broken = false;  // one of them came to a limit: their lexer may have, too
};

/// A compiled constraint. Immutable to its users; any threads.
class Grammar {
 public:
  /// Error: it is no grammar, nothing matches it, or it is too large; says why. `families`: as many
  /// threads compute its masks.
  Grammar(std::shared_ptr<const Vocabulary> vocabulary, Constraint constraint, int families);

  const Constraint& constraint() const { return constraint_; }
  const Vocabulary& vocabulary() const { return *vocabulary_; }

  /// A family with few matchers: `current` unless another has far fewer.
  std::shared_ptr<MatcherFamily> family_for(const std::shared_ptr<MatcherFamily>& current) const;
  /// One whose lexer has not come to a limit.
  std::shared_ptr<MatcherFamily> fresh_family() const;

 private:
  std::shared_ptr<MatcherFamily> make_family() const;

  std::shared_ptr<const Vocabulary> vocabulary_;
  Constraint constraint_;
  std::size_t most_;
  mutable std::mutex mutex_;     // guards the rest
  MatcherFamily::Handle spare_;  // never asked for anything
  mutable std::vector<std::shared_ptr<MatcherFamily>> families_;
};

}  // namespace dendrite
