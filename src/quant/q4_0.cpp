#include "quant/blocks.h"
#include "quant/formats.h"

namespace dendrite {
namespace {

/// f16 d, 16 bytes of nibbles: d * (q - 8).
class Q4_0Format final : public BlockFormat {
 public:
  Q4_0Format() : BlockFormat("q4_0", "Q4_0", 32, 18, {.bits = 4, .lowest = -8}) {}

 private:
  void read_block(const std::uint8_t* block, std::int8_t* codes, float* scales, float*,
                  GroupedValues&) const override {
    scales[0] = half_at(block);
    for (int i = 0; i < 32; ++i) codes[i] = static_cast<std::int8_t>(nibble_at(block + 2, i) - 8);
  }
};

}  // namespace

const Format& q4_0_format() {
  static const Q4_0Format format;
  return format;
}

}  // namespace dendrite
