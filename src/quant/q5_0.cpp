#include "quant/blocks.h"
#include "quant/formats.h"

namespace dendrite {
namespace {

/// f16 d, 32 fifth bits, 16 bytes of nibbles: d * (q - 16).
class Q5_0Format final : public BlockFormat {
 public:
  Q5_0Format() : BlockFormat("q5_0", "Q5_0", 32, 22, Groups{}) {}

 private:
  void read_block(const std::uint8_t* block, std::int8_t* codes, float* scales, float*,
                  GroupedValues&) const override {
    scales[0] = half_at(block);
    for (int i = 0; i < 32; ++i) {
      const int q = nibble_at(block + 6, i) | bit_at(block + 2, i) << 4;
      codes[i] = static_cast<std::int8_t>(q - 16);
    }
  }
};

}  // namespace

const Format& q5_0_format() {
  static const Q5_0Format format;
  return format;
}

}  // namespace dendrite
