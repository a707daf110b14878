#include "backend/cpu/group_place.h"

#include <cstring>

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

void put_number(std::byte* to, GroupScales scales, float value) {
  if (scales == GroupScales::kF32) {
    std::memcpy(to, &value, sizeof value);
  } else if (scales == GroupScales::kF16) {
    put_half(to, value);
  } else {
    const auto code = static_cast<std::int8_t>(value);
    std::memcpy(to, &code, sizeof code);
  }
}
float number_at(const std::byte* from, GroupScales scales) {
  if (scales == GroupScales::kF16) return half_at(from);
  if (scales == GroupScales::kF32) return stored_value(from, DType::kF32, 0);
  return static_cast<float>(static_cast<std::int8_t>(*from));
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
  const bool two_levels = groups.scales == GroupScales::kTwoLevels;
  if (two_levels) {
    put_half(chunk + 2 * lane, values.scale);
    if (groups.minimums) put_half(chunk + 2 * (kPanel + lane), values.minimum);
  }
  for (std::int64_t unit = 0; unit < units; ++unit) {
    std::byte* const head = chunk + info.whole_bytes + unit * info.unit_bytes;
    for (std::int64_t part = 0; part < info.groups; ++part) {
      const auto group = static_cast<std::size_t>(unit * info.groups + part);
      std::byte* const scale = head + (part * kPanel + lane) * info.scale_bytes;
      put_number(scale, groups.scales, values.scales[group]);
      if (groups.minimums) {
        put_number(scale + info.head_bytes / 2, groups.scales, values.minimums[group]);
      }
    }
    std::byte* const codes = head + info.head_bytes + lane * kLaneBytes;
    for (std::int64_t i = 0; i < kUnit; ++i) {
      const int code = values.codes[static_cast<std::size_t>(unit * kUnit + i)] - groups.lowest;
      const CodePlace place = code_place(i, groups.bits);
      codes[place.byte] |= static_cast<std::byte>(code << place.shift);
    }
  }
}

GroupedValues GroupPlace::read() const {
  const GroupsInfo info = info_of(groups);
  GroupedValues values;
  if (groups.scales == GroupScales::kTwoLevels) {
    values.scale = half_at(chunk + 2 * lane);
    if (groups.minimums) values.minimum = half_at(chunk + 2 * (kPanel + lane));
  }
  for (std::int64_t unit = 0; unit < units; ++unit) {
    const std::byte* const head = chunk + info.whole_bytes + unit * info.unit_bytes;
    for (std::int64_t part = 0; part < info.groups; ++part) {
      const auto group = static_cast<std::size_t>(unit * info.groups + part);
      const std::byte* const scale = head + (part * kPanel + lane) * info.scale_bytes;
      values.scales[group] = number_at(scale, groups.scales);
      if (groups.minimums) {
        values.minimums[group] = number_at(scale + info.head_bytes / 2, groups.scales);
      }
    }
    const std::byte* const codes = head + info.head_bytes + lane * kLaneBytes;
    const int mask = groups.bits == 4 ? 15 : 255;
    for (std::int64_t i = 0; i < kUnit; ++i) {
      const CodePlace place = code_place(i, groups.bits);
      const int code = static_cast<int>(codes[place.byte]) >> place.shift & mask;
      values.codes[static_cast<std::size_t>(unit * kUnit + i)] =
          static_cast<std::int8_t>(code + groups.lowest);
    }
  }
  return values;
}

}  // namespace dendrite::cpu
