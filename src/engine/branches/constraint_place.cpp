#include "engine/branches/constraint_place.h"

#include <algorithm>
#include <utility>

namespace dendrite {

/// Without recursion: a branch may have had any number of them.
ConstraintSpan::~ConstraintSpan() {
  std::shared_ptr<const ConstraintSpan> next = std::move(before);
  while (next != nullptr && next.use_count() == 1) {
    // (Nobody else has it, and it is going.)
    next = std::move(const_cast<ConstraintSpan&>(*next).before);
  }
}

void ConstraintPlace::add(std::int64_t length, std::shared_ptr<const Grammar> grammar) {
  matcher = {};
  span = std::make_shared<const ConstraintSpan>(length, std::move(grammar), std::move(span));
}

void ConstraintPlace::begin(std::int64_t length, const Matcher& place) {
  add(length, place.grammar());
  matcher = place;
}

void ConstraintPlace::end(std::int64_t length) {
  if (holds()) add(length, nullptr);
}

void ConstraintPlace::rewind(std::int64_t length) {
  while (span != nullptr && span->begin > length) {
    span = span->before;
    matcher = {};
  }
  if (!matcher.valid()) return;
  matcher = matcher.at(std::min(matcher.length(), length - span->begin));
}

}  // namespace dendrite
