#include "quant/blocks.h"
#include "quant/formats.h"

namespace dendrite {
namespace {

/// f16 d, two bytes and four bytes of eight scales (upper two, lower four bits), 128 of nibbles:
/// (d * (scale - 32)) times one of sixteen uneven steps. 16 bytes are 32 neighbours.
class Iq4XsFormat final : public BlockFormat {
 public:
  Iq4XsFormat()
      : BlockFormat(
            "iq4_xs", "IQ4_XS", 256, 136,
            {.codes = GroupCodes::kUnevenSteps, .bits = 4, .scales = GroupScales::kTwoLevels}) {}

 private:
  void read_block(const std::uint8_t* block, std::int8_t* codes, float* scales, float*,
                  GroupedValues& out) const override {
    out.scale = half_at(block);
    for (int part = 0; part < 8; ++part) {
      const int low = block[4 + part / 2] >> (part % 2 * 4) & 15;
      const int high = block[2 + part / 4] >> (part % 4 * 2) & 3;
      scales[part] = static_cast<float>((low | high << 4) - 32);
      for (int i = 0; i < 32; ++i) {
        codes[part * 32 + i] = kUnevenSteps[nibble_at(block + 8 + part * 16, i)];
      }
    }
  }
};

}  // namespace

const Format& iq4_xs_format() {
  static const Iq4XsFormat format;
  return format;
}

}  // namespace dendrite
