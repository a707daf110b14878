#pragma once

#include <optional>
#include <span>

#include "backend/cuda/products/packed_layout.h"
#include "quant/format.h"

// What packed weights look like in the memory of a GPU: written on the host.
namespace dendrite::cuda {

/// A layout that holds all values of the stacked matrices as they are meant, and what its nibbles
/// begin with.
struct PackedAs {
  PackedLayout layout{};
  int lowest = 0;
};
/// None: they are to be widened. Reads scales of all of a matrix whose file has fewer of them.
std::optional<PackedAs> packed_as(std::span<const StoredMatrix> parts);

/// Rows of 8 that a weight takes: an even number, as warps take two at a time.
std::int64_t tile_rows_of(std::int64_t rows);

/// Rows of 8 [first, first + count) into zeroed memory. Returns whether all their values are finite
/// as bf16.
bool write_tiles(std::span<const StoredMatrix> parts, const PackedAs& packed, std::int64_t first,
                 std::int64_t count, std::byte* out);

}  // namespace dendrite::cuda
