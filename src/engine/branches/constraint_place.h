#pragma once

#include <cstdint>
#include <memory>

#include "grammar/matcher.h"

namespace dendrite {

/// From where on a constraint holds for a branch, or none does; and what held before.
struct ConstraintSpan {
  ConstraintSpan(std::int64_t from, std::shared_ptr<const Grammar> of,
                 std::shared_ptr<const ConstraintSpan> after)
      : begin(from), grammar(std::move(of)), before(std::move(after)) {}
  ~ConstraintSpan();
  ConstraintSpan(const ConstraintSpan&) = delete;
  ConstraintSpan& operator=(const ConstraintSpan&) = delete;

  std::int64_t begin;                      // tokens of the branch before it
  std::shared_ptr<const Grammar> grammar;  // null: free
  std::shared_ptr<const ConstraintSpan> before;
};

/// What a branch is constrained by, and how far along: two references and a length, whatever the
/// length of the branch, so that forks and rewinds take it over in no time.
struct ConstraintPlace {
  std::shared_ptr<const ConstraintSpan> span;  // null: nothing ever
  /// After some of the tokens since the span's begin; SessionCore::find_matcher knows the rest.
  Matcher matcher;

  bool holds() const { return span != nullptr && span->grammar != nullptr; }
  /// From `length` on, the last one so far: that grammar holds; null: none.
  void add(std::int64_t length, std::shared_ptr<const Grammar> grammar);
  /// The same; `place` is after some of the branch's tokens from there on.
  void begin(std::int64_t length, const Matcher& place);
  void end(std::int64_t length);
  /// Back to what held when the branch had so many tokens.
  void rewind(std::int64_t length);
};

}  // namespace dendrite
