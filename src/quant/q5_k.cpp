#include "quant/blocks.h"
#include "quant/formats.h"

namespace dendrite {
namespace {

/// As q4_k, with 32 bytes of fifth bits before the nibbles: bits k of 32 bytes are 32 neighbours.
class Q5KFormat final : public BlockFormat {
 public:
  Q5KFormat()
      : BlockFormat("q5_k", "Q5_K", 256, 176,
                    {.minimums = true, .scales = GroupScales::kTwoLevels}) {}

 private:
  void read_block(const std::uint8_t* block, std::int8_t* codes, float* scales, float* minimums,
                  GroupedValues& out) const override {
    out.scale = half_at(block);
    out.minimum = half_at(block + 2);
    read_six_bits(block + 4, scales, minimums);
    const std::uint8_t* const fifths = block + 16;
    for (int part = 0; part < 8; ++part) {
      const std::uint8_t* const nibbles = block + 48 + part / 2 * 32;
      for (int i = 0; i < 32; ++i) {
        const int q = (nibbles[i] >> (part % 2 * 4) & 15) | (fifths[i] >> part & 1) << 4;
        codes[part * 32 + i] = static_cast<std::int8_t>(q);
      }
    }
  }
};

}  // namespace

const Format& q5_k_format() {
  static const Q5KFormat format;
  return format;
}

}  // namespace dendrite
