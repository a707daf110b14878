#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "dendrite/compose.h"

namespace dendrite::fuzz {

struct Recipe;

/// What K and V of a path depend on: its first `head` tokens were given at once, as a prompt or by
/// a composition, and the others came after them.
struct Origin {
  std::vector<Token> tokens;
  std::int64_t head = 0;
  std::shared_ptr<const Recipe>
      composed{};  // as it was made, of at least `head` tokens; null: a prompt
};

/// A composition in which K and V were moved, as it can be made again of nothing.
struct Recipe {
  struct Part {
    Origin from{};  // of its positions `at`, but for the repair; of all its tokens, if computed
    Span at{};
    Repair repair{};
    bool is_computed = false;
  };
  std::vector<Part> parts;  // none of them empty
  int depth = 1;            // compositions that are needed one after the other
};

inline int depth_of(const std::shared_ptr<const Recipe>& recipe) {
  return recipe == nullptr ? 0 : recipe->depth;
}

}  // namespace dendrite::fuzz
