#pragma once

#include <cstdint>
#include <vector>

#include "quant/format.h"

namespace dendrite {

/// The columns of a matrix in the order of their groups, and in a group in their own; empty where
/// that is their own, or where groups are not of one size.
std::vector<std::int32_t> column_order(const StoredMatrix& matrix);

}  // namespace dendrite
