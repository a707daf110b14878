#pragma once

#include <cuda.h>

#include <cstdint>

// What asynchronous copies of tiles (compute capability 9.0 and later) need to know of a matrix.
namespace dendrite::cuda {

inline constexpr int kTileColumns = 64;

/// Whether the driver can describe matrices.
bool describes_tiles();

/// bf16 rows, `stride` values apart (a multiple of 8), 16-byte aligned, cut into tiles of 64
/// columns
/// (`cols` a multiple of that). A copy takes `box_rows` rows (up to 256) of `box_tiles` tiles: one
/// tile after the other, rows of 128 bytes, swizzled as products of a warpgroup want them. Throws
/// Error when the driver refuses. Requires describes_tiles().
CUtensorMap describe_tiles(const void* data, std::int64_t rows, std::int64_t cols,
                           std::int64_t stride, int box_rows, int box_tiles);

/// Rows that are `heads` of `head_dim` (even) each. A copy takes, of `box_heads` heads, `box_pairs`
/// pairs of rows i and i + head_dim / 2: one tile after the other, in it head after head, in it
/// pair after pair.
CUtensorMap describe_pairs(const void* data, std::int64_t heads, std::int64_t head_dim,
                           std::int64_t cols, std::int64_t stride, int box_pairs, int box_heads,
                           int box_tiles);

}  // namespace dendrite::cuda
