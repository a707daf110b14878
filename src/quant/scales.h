#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string_view>

#include "quant/format.h"

// Scales in a tensor beside, as formats of 8 bits have them.
namespace dendrite {

/// The scales of `matrix`: one for all of it, one a row, or one for each 128 × 128 values (fewer at
/// the edges), in the first tensor that there is of its name with one of `suffixes` behind. Throws
/// Error naming tensor and file where there is none, or it has another shape, or neither plain
/// numbers nor F8_E8M0.
Companion find_scales(const TensorSource& source, const StoredMatrix& matrix,
                      std::initializer_list<std::string_view> suffixes);

/// Multiplies values [begin, begin + values.size()) of row `row` by theirs, in f32.
void apply_scales(const StoredMatrix& matrix, std::int64_t row, std::int64_t begin,
                  std::span<float> values);

}  // namespace dendrite
