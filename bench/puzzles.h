#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "game24_search.h"

namespace dendrite::bench {

/// Solvable puzzles of a file with lines "0 1 1 1 3" or "1 4 5 6 10" (whether, then the numbers),
/// or "206: 1 5 11 16 18" (all solvable, each with its target).
/// A target that is given holds for the first kind. At most `limit`; 0: all.
std::vector<game24::Puzzle> read_puzzles(const std::string& path, int target, std::int64_t limit);

/// Held-out puzzles lie beside their model. A model without any gets the shipped model's.
std::string puzzles_for(const std::string& model);

}  // namespace dendrite::bench
