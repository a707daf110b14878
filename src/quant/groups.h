#pragma once

#include <array>
#include <cstdint>

#include "quant/e4m3.h"

// Weights as codes, neighbours of which share what they are multiplied with.
namespace dendrite {

/// What a group's scale and minimum are stored as: a number each, or a small whole number each that
/// is multiplied with a number of 256 values.
enum class GroupScales : std::uint8_t { kF16, kF32, kTwoLevels };

/// What a code is: a whole number, the eight bits of an E4M3, or twice an E2M1 (a whole number,
/// too).
enum class GroupCodes : std::uint8_t { kWhole, kE4M3, kDoubledE2M1 };

/// What the groups of a matrix are like. A value is scale * code, or scale * code - minimum.
struct Groups {
  GroupCodes codes = GroupCodes::kWhole;
  std::uint8_t bits = 8;       // of a code: 4 or 8
  std::int16_t lowest = -128;  // codes are lowest .. lowest + 2^bits - 1
  std::uint8_t size = 32;      // neighbours of a row: 16 or 32
  bool minimums = false;
  GroupScales scales = GroupScales::kF16;

  bool operator==(const Groups&) const = default;
};

/// Neighbours of a row from a multiple of 256 on, up to 256 of them: value i is
///   (scale * scales[i / size]) * codes[i]  [- minimum * minimums[i / size]]
struct GroupedValues {
  static constexpr std::int64_t kMost = 256;
  std::array<std::int8_t, kMost> codes{};
  std::array<float, kMost / 16> scales{};
  std::array<float, kMost / 16> minimums{};
  float scale = 1;  // but for kTwoLevels these are 1
  float minimum = 1;

  float value(const Groups& groups, std::int64_t i) const {
    const auto at = static_cast<std::size_t>(i);
    const std::size_t group = at / groups.size;
    const float code = groups.codes == GroupCodes::kE4M3
                           ? e4m3_value(static_cast<std::uint8_t>(codes[at]))
                           : static_cast<float>(codes[at]);
    const float product = scale * scales[group] * code;
    return groups.minimums ? product - minimum * minimums[group] : product;
  }
};

}  // namespace dendrite
