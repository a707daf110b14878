#include "quant/blocks.h"
#include "quant/formats.h"

namespace dendrite {
namespace {

/// f16 d, f16 m, 32 fifth bits, 16 bytes of nibbles: d * q + m.
class Q5_1Format final : public BlockFormat {
 public:
  Q5_1Format() : BlockFormat("q5_1", "Q5_1", 32, 24, {.minimums = true}) {}

 private:
  void read_block(const std::uint8_t* block, std::int8_t* codes, float* scales, float* minimums,
                  GroupedValues&) const override {
    scales[0] = half_at(block);
    minimums[0] = -half_at(block + 2);
    for (int i = 0; i < 32; ++i) {
      const int q = nibble_at(block + 8, i) | bit_at(block + 4, i) << 4;
      codes[i] = static_cast<std::int8_t>(q);
    }
  }
};

}  // namespace

const Format& q5_1_format() {
  static const Q5_1Format format;
  return format;
}

}  // namespace dendrite
