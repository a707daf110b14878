#include "quant/blocks.h"
#include "quant/formats.h"

namespace dendrite {
namespace {

/// f16 d, f16 m, 16 bytes of nibbles: d * q + m.
class Q4_1Format final : public BlockFormat {
 public:
  Q4_1Format() : BlockFormat("q4_1", "Q4_1", 32, 20) {}

 private:
  void widen_block(const std::uint8_t* block, float* out) const override {
    const float d = half_at(block);
    const float m = half_at(block + 2);
    const std::uint8_t* const nibbles = block + 4;
    for (int i = 0; i < 16; ++i) {
      out[i] = d * static_cast<float>(nibbles[i] & 15) + m;
      out[16 + i] = d * static_cast<float>(nibbles[i] >> 4) + m;
    }
  }
};

}  // namespace

const Format& q4_1_format() {
  static const Q4_1Format format;
  return format;
}

}  // namespace dendrite
