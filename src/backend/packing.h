#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "quant/format.h"

// Reading stored matrices, for backends that pack them.
namespace dendrite {

/// Values [begin, begin + count) of a row as numbers of a type; whole blocks. Those that are stored
/// in another are widened, then rounded once.
void convert(std::byte* out, DType to, const StoredMatrix& matrix, std::int64_t row,
             std::int64_t begin, std::int64_t count);

/// Rows of the matrices stacked. Throws Error unless all have positive sizes and equal cols.
std::int64_t stacked_rows(std::span<const StoredMatrix> parts);

/// Finds the value that is not finite, as stored or once converted to `kept`, and throws Error
/// naming its tensor and file.
[[noreturn]] void throw_not_finite(std::span<const StoredMatrix> parts, DType kept);

}  // namespace dendrite
