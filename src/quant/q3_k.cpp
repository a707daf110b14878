#include "quant/blocks.h"
#include "quant/formats.h"

namespace dendrite {
namespace {

/// 32 bytes of third bits, 64 of two bits, 12 of 16 scales of six bits, f16 d: (d * (scale - 32)) *
/// q, where q is the two bits, less 4 where the third is not set. Third bits k of 32 bytes, and two
/// bits k of 32, are 32 neighbours.
class Q3KFormat final : public BlockFormat {
 public:
  Q3KFormat()
      : BlockFormat("q3_k", "Q3_K", 256, 110, {.size = 16, .scales = GroupScales::kTwoLevels}) {}

 private:
  void read_block(const std::uint8_t* block, std::int8_t* codes, float* scales, float*,
                  GroupedValues& out) const override {
    out.scale = half_at(block + 108);
    const std::uint8_t* const stored = block + 96;
    for (int part = 0; part < 16; ++part) {
      const int low = stored[part % 8] >> (part / 8 * 4) & 15;
      const int high = stored[8 + part % 4] >> (part / 4 * 2) & 3;
      scales[part] = static_cast<float>((low | high << 4) - 32);
      const std::uint8_t* const thirds = block + part % 2 * 16;
      const std::uint8_t* const twos = block + 32 + part / 8 * 32 + part % 2 * 16;
      const int shift = part % 8 / 2 * 2;
      for (int i = 0; i < 16; ++i) {
        const int q = (twos[i] >> shift & 3) - 4 + 4 * (thirds[i] >> (part / 2) & 1);
        codes[part * 16 + i] = static_cast<std::int8_t>(q);
      }
    }
  }
};

}  // namespace

const Format& q3_k_format() {
  static const Q3KFormat format;
  return format;
}

}  // namespace dendrite
