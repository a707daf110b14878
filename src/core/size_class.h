#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>

namespace dendrite {

/// Up to 16 each count is a class by itself, then 8 to an octave: the smallest count of the class.
inline std::int64_t size_class(std::int64_t count) {
  const auto width = static_cast<int>(std::bit_width(static_cast<std::uint64_t>(count)));
  const int drop = std::max(0, width - 4);
  return count >> drop << drop;
}

}  // namespace dendrite
