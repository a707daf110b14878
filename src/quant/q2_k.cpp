#include "quant/blocks.h"
#include "quant/formats.h"

namespace dendrite {
namespace {

/// 16 bytes of a scale (low) and a minimum (high) of 16 values each, 64 bytes of two bits, f16 d,
/// f16 dmin: (d * scale) * q - dmin * minimum. Two bits of 32 bytes are 32 neighbours.
class Q2KFormat final : public BlockFormat {
 public:
  Q2KFormat()
      : BlockFormat("q2_k", "Q2_K", 256, 84,
                    {.size = 16, .minimums = true, .scales = GroupScales::kTwoLevels}) {}

 private:
  void read_block(const std::uint8_t* block, std::int8_t* codes, float* scales, float* minimums,
                  GroupedValues& out) const override {
    out.scale = half_at(block + 80);
    out.minimum = half_at(block + 82);
    for (int part = 0; part < 16; ++part) {
      scales[part] = static_cast<float>(block[part] & 15);
      minimums[part] = static_cast<float>(block[part] >> 4);
      const std::uint8_t* const twos = block + 16 + part / 8 * 32 + part % 2 * 16;
      const int shift = part % 8 / 2 * 2;
      for (int i = 0; i < 16; ++i) {
        codes[part * 16 + i] = static_cast<std::int8_t>(twos[i] >> shift & 3);
      }
    }
  }
};

}  // namespace

const Format& q2_k_format() {
  static const Q2KFormat format;
  return format;
}

}  // namespace dendrite
