#include "quant/blocks.h"
#include "quant/formats.h"

namespace dendrite {
namespace {

/// f16 d, f16 dmin, 12 bytes of eight scales and minimums, 128 of nibbles: (d * scale) * q - dmin *
/// minimum. Low bits of 32 bytes are 32 neighbours, high bits the next.
class Q4KFormat final : public BlockFormat {
 public:
  Q4KFormat()
      : BlockFormat("q4_k", "Q4_K", 256, 144,
                    {.bits = 4, .lowest = 0, .minimums = true, .scales = GroupScales::kTwoLevels}) {
  }

 private:
  void read_block(const std::uint8_t* block, std::int8_t* codes, float* scales, float* minimums,
                  GroupedValues& out) const override {
    out.scale = half_at(block);
    out.minimum = half_at(block + 2);
    read_six_bits(block + 4, scales, minimums);
    for (int part = 0; part < 8; ++part) {
      const std::uint8_t* const nibbles = block + 16 + part / 2 * 32;
      for (int i = 0; i < 32; ++i) {
        const int q = nibbles[i] >> (part % 2 * 4) & 15;
        codes[part * 32 + i] = static_cast<std::int8_t>(q);
      }
    }
  }
};

}  // namespace

const Format& q4_k_format() {
  static const Q4KFormat format;
  return format;
}

}  // namespace dendrite
