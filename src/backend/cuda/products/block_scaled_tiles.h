#pragma once

#include <cstdint>
#include <optional>
#include <span>

#include "backend/cuda/products/block_scaled.h"
#include "quant/format.h"

// What block-scaled weights look like in the memory of a GPU: written on the host.
namespace dendrite::cuda {

/// The format of a matrix as a file has it whose codes and scales tensor cores take as they are and
/// whose inputs are to be rounded alike; none else.
std::optional<BlockFormat> block_format_of(const StoredMatrix& matrix);

/// Of NVFP4, what all scales are multiplied with; of MXFP8 1.
float whole_scale_of(const StoredMatrix& matrix);
/// The same of the stacked matrices' inputs: of what their file asks for, the largest, so that none
/// is cut off. Where it says nothing 1, with which a group of 16 may have values up to 2688 and as
/// few as 0.1 with all bits of its scale.
float whole_input_scale_of(std::span<const StoredMatrix> parts);

/// Rows of a matrix to rows [first, first + rows) of a weight. Returns whether codes and scales are
/// numbers, and scales not negative.
bool write_block_tiles(const StoredMatrix& matrix, BlockFormat format, std::int64_t first,
                       std::int64_t weight_rows, std::uint32_t* out);

/// As kernels round a row of values, which are bf16: codes, and a scale for each group.
void round_block_scaled(BlockFormat format, float whole, std::span<const float> row,
                        std::byte* codes, std::byte* scales);
/// What such a row means.
void widen_block_scaled(BlockFormat format, float whole, const std::byte* codes,
                        const std::byte* scales, std::span<float> row);

}  // namespace dendrite::cuda
