#pragma once

#include <cstddef>

namespace dendrite {

/// Of a group of backends (Backend::ranks): a kernel that sums takes a pointer of each.
inline constexpr std::size_t kMostRanks = 8;

}  // namespace dendrite
