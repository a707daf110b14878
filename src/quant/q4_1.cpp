#include "quant/blocks.h"
#include "quant/formats.h"

namespace dendrite {
namespace {

/// f16 d, f16 m, 16 bytes of nibbles: d * q + m.
class Q4_1Format final : public BlockFormat {
 public:
  Q4_1Format() : BlockFormat("q4_1", "Q4_1", 32, 20, {.bits = 4, .lowest = 0, .minimums = true}) {}

 private:
  void read_block(const std::uint8_t* block, std::int8_t* codes, float* scales, float* minimums,
                  GroupedValues&) const override {
    scales[0] = half_at(block);
    minimums[0] = -half_at(block + 2);
    for (int i = 0; i < 32; ++i) codes[i] = static_cast<std::int8_t>(nibble_at(block + 4, i));
  }
};

}  // namespace

const Format& q4_1_format() {
  static const Q4_1Format format;
  return format;
}

}  // namespace dendrite
