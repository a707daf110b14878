#include "quant/blocks.h"

#include <algorithm>
#include <cstring>

#include "core/dtype.h"

namespace dendrite {

void BlockFormat::widen(const StoredMatrix& matrix, std::int64_t row, std::int64_t begin,
                        std::span<float> out) const {
  GroupedValues values;
  const auto count = static_cast<std::int64_t>(out.size());
  for (std::int64_t first = 0; first < count; first += GroupedValues::kMost) {
    const std::int64_t some = std::min(GroupedValues::kMost, count - first);
    read_groups(matrix, row, begin + first, some, values);
    for (std::int64_t i = 0; i < some; ++i) {
      out[static_cast<std::size_t>(first + i)] = values.value(groups_, i);
    }
  }
}

void BlockFormat::read_groups(const StoredMatrix& matrix, std::int64_t row, std::int64_t begin,
                              std::int64_t count, GroupedValues& out) const {
  const auto* from =
      reinterpret_cast<const std::uint8_t*>(matrix.row(row)) + begin / block() * block_bytes();
  for (std::int64_t i = 0; i < count; i += block(), from += block_bytes()) {
    const std::int64_t group = i / groups_.size;
    read_block(from, out.codes.data() + i, out.scales.data() + group, out.minimums.data() + group,
               out);
  }
}

float half_at(const std::uint8_t* bytes) {
  F16 bits;
  std::memcpy(&bits, bytes, 2);
  return to_f32(bits);
}

void read_six_bits(const std::uint8_t* bytes, float* scales, float* minimums) {
  for (int part = 0; part < 8; ++part) {
    const int scale =
        part < 4 ? bytes[part] & 63 : (bytes[part + 4] & 15) | bytes[part - 4] >> 6 << 4;
    const int minimum =
        part < 4 ? bytes[part + 4] & 63 : bytes[part + 4] >> 4 | bytes[part] >> 6 << 4;
    scales[part] = static_cast<float>(scale);
    minimums[part] = static_cast<float>(minimum);
  }
}

}  // namespace dendrite
