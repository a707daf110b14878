#include "quant/blocks.h"
#include "quant/formats.h"

namespace dendrite {
namespace {

/// f16 d, 16 bytes of nibbles: d * (q - 8).
class Q4_0Format final : public BlockFormat {
 public:
  Q4_0Format() : BlockFormat("q4_0", "Q4_0", 32, 18) {}

 private:
  void widen_block(const std::uint8_t* block, float* out) const override {
    const float d = half_at(block);
    const std::uint8_t* const nibbles = block + 2;
    for (int i = 0; i < 16; ++i) {
      out[i] = d * static_cast<float>((nibbles[i] & 15) - 8);
      out[16 + i] = d * static_cast<float>((nibbles[i] >> 4) - 8);
    }
  }
};

}  // namespace

const Format& q4_0_format() {
  static const Q4_0Format format;
  return format;
}

}  // namespace dendrite
