#pragma once

#include <string>

#include "dendrite/error.h"
#include "dendrite_bridge.h"
#include "grammar/grammar.h"

namespace dendrite {

enum class Fork {
  kSameFamily,  ///< in microseconds; the two are then used one at a time
  kApart,       ///< with a lexer of its own: some tens of microseconds
};

/// Throws Error where there is no memory for it, or the matcher has come to a limit.
inline MatcherFamily::Handle fork_matcher(const dn_matcher& matcher, Fork fork) {
  dn_matcher* out = nullptr;
  if (dn_matcher_fork(&matcher, fork == Fork::kApart ? 1 : 0, &out) < DN_OK) {
    throw Error(std::string("constraint: ") + dn_last_error());
  }
  return MatcherFamily::Handle(out);
}

}  // namespace dendrite
