#include "quant/blocks.h"

#include <cstring>

#include "core/dtype.h"

namespace dendrite {

void BlockFormat::widen(const StoredMatrix& matrix, std::int64_t row, std::int64_t begin,
                        std::span<float> out) const {
  const auto* from =
      reinterpret_cast<const std::uint8_t*>(matrix.row(row)) + begin / block() * block_bytes();
  for (std::size_t i = 0; i < out.size(); i += static_cast<std::size_t>(block())) {
    widen_block(from, out.data() + i);
    from += block_bytes();
  }
}

float half_at(const std::uint8_t* bytes) {
  F16 bits;
  std::memcpy(&bits, bytes, 2);
  return to_f32(bits);
}

Step step_at(const std::uint8_t* bytes, int part, float d, float dmin) {
  const int scale =
      part < 4 ? bytes[part] & 63 : (bytes[part + 4] & 15) | bytes[part - 4] >> 6 << 4;
  const int minimum =
      part < 4 ? bytes[part + 4] & 63 : bytes[part + 4] >> 4 | bytes[part] >> 6 << 4;
  return {d * static_cast<float>(scale), dmin * static_cast<float>(minimum)};
}

}  // namespace dendrite
