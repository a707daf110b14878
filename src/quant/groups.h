#pragma once

#include <array>
#include <cstdint>

#include "quant/e4m3.h"

// Weights as codes, neighbours of which share what they are multiplied with.
namespace dendrite {

/// What a group's scale and minimum are stored as: a number each, or a small whole number each that
/// is multiplied with a number of 256 values. Scales alone may be in 8 bits: powers of two, 2^-128
/// to 2^126, or with kSteps one of Groups::steps times 1 to 2^31, or the negative of that, or 0.
enum class GroupScales : std::uint8_t { kF16, kF32, kTwoLevels, kPowers, kSteps };

/// What a code is: a whole number, the eight bits of an E4M3, or one of sixteen whole numbers,
/// which are twice those of E2M1, or iq4_nl's uneven steps.
enum class GroupCodes : std::uint8_t { kWhole, kE4M3, kDoubledE2M1, kUnevenSteps };

inline constexpr std::int8_t kDoubledE2M1[16] = {0, 1,  2,  3,  4,  6,  8,  12,
                                                 0, -1, -2, -3, -4, -6, -8, -12};
inline constexpr std::int8_t kUnevenSteps[16] = {-127, -104, -83, -65, -49, -35, -22, -10,
                                                 1,    13,   25,  38,  53,  69,  89,  113};

/// The sixteen numbers; null where codes are none of them.
constexpr const std::int8_t* table_of(GroupCodes codes) {
  if (codes == GroupCodes::kDoubledE2M1) return kDoubledE2M1;
  return codes == GroupCodes::kUnevenSteps ? kUnevenSteps : nullptr;
}

/// What the groups of a matrix are like. A value is scale * code, or scale * code - minimum.
struct Groups {
  GroupCodes codes = GroupCodes::kWhole;
  std::uint8_t bits = 8;       // of a code: 4 or 8
  std::int16_t lowest = -128;  // codes are lowest .. lowest + 2^bits - 1, or not below it
  std::uint8_t size = 32;      // neighbours of a row: 16 or 32
  std::uint8_t repeats = 1;    // groups, from a multiple of it on, that have the same numbers
  bool minimums = false;
  bool points = false;  // a minimum is the scale times a whole number of 8 bits
  // Scales have 8 significant bits, as have minimums with 16 scales added to them: bf16 is enough
  // for scale * (16 + code) - (minimum + 16 * scale).
  bool raised = false;
  // Of kE4M3 with scales in f32: squares of 128 rows and columns share one, else a whole row does.
  bool squares = false;
  GroupScales scales = GroupScales::kF16;
  float steps[8] = {};  // of kSteps; none is twice another

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
