#include "backend/cpu/group_place.h"

#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <span>

#include "core/dtype.h"

namespace dendrite::cpu {
namespace {

constexpr auto kLaneBytes = static_cast<std::int64_t>(sizeof(std::uint32_t));

void put_half(std::byte* to, float value) {
  const F16 half = to_f16(value);
  std::memcpy(to, &half, sizeof half);
}
float half_at(const std::byte* from) {
  return stored_value(from, DType::kF16, 0);
}

/// A positive scale as one of the steps, in the lower three bits, times a power of two.
std::uint8_t step_code(std::span<const float, 8> steps, float scale) {
  int exponent = 0;
  const float fraction = std::frexp(scale, &exponent);
  for (std::size_t i = 0; i < steps.size(); ++i) {
    int of_step = 0;
    if (std::frexp(steps[i], &of_step) == fraction) {
      return static_cast<std::uint8_t>(i | static_cast<std::size_t>(exponent - of_step) << 3);
    }
  }
  return 0;  // of what is not finite
}

void put_number(std::byte* to, const Groups& groups, float value) {
  std::uint8_t code = 0;
  switch (groups.scales) {
    case GroupScales::kF32:
      std::memcpy(to, &value, sizeof value);
      return;
    case GroupScales::kF16:
      put_half(to, value);
      return;
    case GroupScales::kTwoLevels:
      code = std::bit_cast<std::uint8_t>(static_cast<std::int8_t>(value));
      break;
    case GroupScales::kPowers:
      code = static_cast<std::uint8_t>(std::isfinite(value) ? std::ilogb(value) + 128 : 0);
      break;
    case GroupScales::kSteps:
      code = step_code(groups.steps, value);
      break;
  }
  *to = std::byte{code};
}
float number_at(const std::byte* from, const Groups& groups) {
  const auto code = std::to_integer<int>(*from);
  switch (groups.scales) {
    case GroupScales::kF32:
      return stored_value(from, DType::kF32, 0);
    case GroupScales::kF16:
      return half_at(from);
    case GroupScales::kTwoLevels:
      break;
    case GroupScales::kPowers:
      return std::ldexp(1.0F, code - 128);
    case GroupScales::kSteps:
      return std::ldexp(groups.steps[code & 7], code >> 3);
  }
  return static_cast<float>(static_cast<std::int8_t>(code));
}

/// The whole number that a minimum is of its scale.
std::byte point_of(float scale, float minimum) {
  const float point = minimum == 0 ? 0 : std::nearbyint(minimum / scale);
  return static_cast<std::byte>(std::isfinite(point) ? static_cast<std::int8_t>(point) : 0);
}

/// Which entry of a table a number is, by the number's byte.
std::array<std::uint8_t, 256> entries_of(const std::int8_t* table) {
  std::array<std::uint8_t, 256> entries{};
  for (std::size_t i = 16; i-- > 0;) {
    entries[static_cast<std::uint8_t>(table[i])] = static_cast<std::uint8_t>(i);
  }
  return entries;
}

/// A code as panels hold it.
int stored_code(const Groups& groups, int code) {
  static const std::array<std::uint8_t, 256> of_e2m1 = entries_of(kDoubledE2M1);
  static const std::array<std::uint8_t, 256> of_uneven = entries_of(kUnevenSteps);
  if (table_of(groups.codes) == nullptr) return code - groups.lowest;
  const auto& entries = groups.codes == GroupCodes::kDoubledE2M1 ? of_e2m1 : of_uneven;
  return entries[static_cast<std::uint8_t>(code)];
}
int meant_code(const Groups& groups, int stored) {
  const std::int8_t* const table = table_of(groups.codes);
  return table == nullptr ? stored + groups.lowest : table[stored];
}

/// Of a value of a unit: its byte in the lane's words, and how far up its bits are.
struct CodePlace {
  std::int64_t byte;
  int shift;
};
CodePlace code_place(std::int64_t i, int bits) {
  if (bits == 8) return {i / 4 * kPanel * kLaneBytes + i % 4, 0};
  return {i / 8 * kPanel * kLaneBytes + i % 4, i % 8 < 4 ? 0 : 4};
}

}  // namespace

void GroupPlace::write(const GroupedValues& values) const {
  const GroupsInfo info = info_of(groups);
  if (groups.scales == GroupScales::kTwoLevels) {
    put_half(chunk + 2 * lane, values.scale);
    if (groups.minimums) put_half(chunk + 2 * (kPanel + lane), values.minimum);
  }
  for (std::int64_t i = 0; i < info.numbers(units); ++i) {
    const auto group = static_cast<std::size_t>(i * info.repeats);
    const float scale = values.scales[group];
    const bool steps = groups.scales == GroupScales::kSteps;
    put_number(chunk + info.whole_bytes + (i * kPanel + lane) * info.scale_bytes, groups,
               steps ? std::abs(scale) : scale);
    if (!groups.minimums) continue;
    std::byte* const minimum =
        chunk + info.minimums_at(units) + (i * kPanel + lane) * info.minimum_bytes;
    if (groups.points) {
      *minimum = point_of(scale, values.minimums[group]);
    } else {
      put_number(minimum, groups, values.minimums[group]);
    }
  }
  std::byte* const codes = chunk + info.codes_at(units) + lane * kLaneBytes;
  for (std::int64_t i = 0; i < units * kUnit; ++i) {
    int code = values.codes[static_cast<std::size_t>(i)];
    if (groups.scales == GroupScales::kSteps) {  // which have no sign, and are never 0
      const float scale = values.scales[static_cast<std::size_t>(i / groups.size)];
      code = scale > 0 ? code : scale < 0 ? -code : 0;
    }
    const CodePlace place = code_place(i % kUnit, groups.bits);
    codes[i / kUnit * info.unit_bytes + place.byte] |=
        static_cast<std::byte>(stored_code(groups, code) << place.shift);
  }
}

GroupedValues GroupPlace::read() const {
  const GroupsInfo info = info_of(groups);
  GroupedValues values;
  if (groups.scales == GroupScales::kTwoLevels) {
    values.scale = half_at(chunk + 2 * lane);
    if (groups.minimums) values.minimum = half_at(chunk + 2 * (kPanel + lane));
  }
  for (std::int64_t i = 0; i < units * info.groups; ++i) {
    const auto group = static_cast<std::size_t>(i);
    const std::int64_t at = i / info.repeats * kPanel + lane;
    values.scales[group] = number_at(chunk + info.whole_bytes + at * info.scale_bytes, groups);
    if (!groups.minimums) continue;
    const std::byte* const minimum = chunk + info.minimums_at(units) + at * info.minimum_bytes;
    values.minimums[group] = groups.points
                                 ? values.scales[group] * std::to_integer<std::int8_t>(*minimum)
                                 : number_at(minimum, groups);
  }
  const std::byte* const codes = chunk + info.codes_at(units) + lane * kLaneBytes;
  const int mask = groups.bits == 4 ? 15 : 255;
  for (std::int64_t i = 0; i < units * kUnit; ++i) {
    const CodePlace place = code_place(i % kUnit, groups.bits);
    const auto byte = std::to_integer<int>(codes[i / kUnit * info.unit_bytes + place.byte]);
    values.codes[static_cast<std::size_t>(i)] =
        static_cast<std::int8_t>(meant_code(groups, byte >> place.shift & mask));
  }
  return values;
}

}  // namespace dendrite::cpu
