#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "dendrite/constraint.h"

namespace dendrite::fuzz {

/// What a branch was constrained by, and from which of its lengths on.
class Spans {
 public:
  struct Span {
    std::int64_t from = 0;  // tokens of the branch before it
    std::optional<Constraint> constraint{};
  };

  void add(std::int64_t length, std::optional<Constraint> constraint) {
    all_.push_back({length, std::move(constraint)});
  }
  /// Back to what held when the branch had so many tokens.
  void rewind(std::int64_t length) {
    std::erase_if(all_, [length](const Span& span) { return span.from > length; });
  }
  /// Under what the branch is; null: it is free.
  const Constraint* constraint() const {
    return all_.empty() || !all_.back().constraint ? nullptr : &*all_.back().constraint;
  }
  /// All that ever held, the first first.
  const std::vector<Span>& all() const { return all_; }

 private:
  std::vector<Span> all_;
};

}  // namespace dendrite::fuzz
