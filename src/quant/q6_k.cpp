#include "quant/blocks.h"
#include "quant/formats.h"

namespace dendrite {
namespace {

/// 128 bytes of nibbles, 64 of the upper two bits, 16 signed scales, f16 d: (d * scale) * (q - 32).
/// Low bits of 64 bytes are 64 neighbours, high bits the next; upper bits as in q2_k.
class Q6KFormat final : public BlockFormat {
 public:
  Q6KFormat()
      : BlockFormat("q6_k", "Q6_K", 256, 210, {.size = 16, .scales = GroupScales::kTwoLevels}) {}

 private:
  void read_block(const std::uint8_t* block, std::int8_t* codes, float* scales, float*,
                  GroupedValues& out) const override {
    out.scale = half_at(block + 208);
    const auto* const stored = reinterpret_cast<const std::int8_t*>(block + 192);
    for (int part = 0; part < 16; ++part) {
      scales[part] = static_cast<float>(stored[part]);
      const std::uint8_t* const lows = block + part / 8 * 64 + part % 4 * 16;
      const std::uint8_t* const highs = block + 128 + part / 8 * 32 + part % 2 * 16;
      const int low_shift = part % 8 / 4 * 4;
      const int high_shift = part % 8 / 2 * 2;
      for (int i = 0; i < 16; ++i) {
        const int q = (lows[i] >> low_shift & 15) | (highs[i] >> high_shift & 3) << 4;
        codes[part * 16 + i] = static_cast<std::int8_t>(q - 32);
      }
    }
  }
};

}  // namespace

const Format& q6_k_format() {
  static const Q6KFormat format;
  return format;
}

}  // namespace dendrite
