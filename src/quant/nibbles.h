#pragma once

#include <array>
#include <cstdint>
#include <numeric>
#include <optional>
#include <string>

#include "quant/format.h"

// Four bits a value, eight in a word of 32, as formats of 4 bits pack them.
namespace dendrite {

/// A word of row-major words, which may be unaligned.
std::uint32_t word_at(const std::byte* words, std::int64_t index);

inline std::uint32_t nibble_of(std::uint32_t word, std::int64_t place) {
  return word >> (4 * place) & 15U;
}

/// The place in its word of each of eight neighbours.
using NibbleOrder = std::array<std::uint8_t, 8>;
inline constexpr NibbleOrder kInOrder{0, 1, 2, 3, 4, 5, 6, 7};
inline constexpr NibbleOrder kAwqOrder{0, 4, 1, 5, 2, 6, 3, 7};

/// Groups of four bits a value, `size` neighbours of a row each; none where they are no whole 32.
inline std::optional<Groups> groups_of_fours(const StoredMatrix& matrix, std::int64_t size,
                                             int lowest) {
  if (size % 32 != 0) return std::nullopt;
  const bool zeros = matrix.zeros.format != nullptr;
  const bool half = matrix.scales.format->number() == DType::kF16;
  const std::int64_t most = GroupedValues::kMost / 32;
  return Groups{.bits = 4,
                .lowest = static_cast<std::int16_t>(lowest),
                .repeats = static_cast<std::uint8_t>(std::gcd(size / 32, most)),
                .minimums = zeros,
                .points = zeros,
                .scales = half ? GroupScales::kF16 : GroupScales::kF32};
}

/// The tensor `name` of words, of this shape; an Error naming it, its file, what was got and what
/// was expected, where there is none (`of` does not go without it) or it is another.
const TensorInfo& require_words(const TensorSource& source, const std::string& name,
                                std::array<std::int64_t, 2> shape, const TensorInfo& of);

/// The tensor `name` of plain numbers [groups, cols], `groups` of which go evenly into `count`;
/// checked in the same way.
Companion find_groups(const TensorSource& source, const std::string& name, std::int64_t count,
                      std::int64_t cols, const TensorInfo& of);

}  // namespace dendrite
