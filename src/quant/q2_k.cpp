#include "quant/blocks.h"
#include "quant/formats.h"

namespace dendrite {
namespace {

/// 16 bytes of a scale (low) and a minimum (high) of 16 values each, 64 bytes of two bits, f16 d,
/// f16 dmin: (d * scale) * q - dmin * minimum. Two bits of 32 bytes are 32 neighbours.
class Q2KFormat final : public BlockFormat {
 public:
  Q2KFormat() : BlockFormat("q2_k", "Q2_K", 256, 84) {}

 private:
  void widen_block(const std::uint8_t* block, float* out) const override {
    const float d = half_at(block + 80);
    const float dmin = half_at(block + 82);
    for (int part = 0; part < 16; ++part) {
      const float scale = d * static_cast<float>(block[part] & 15);
      const float minimum = dmin * static_cast<float>(block[part] >> 4);
      const std::uint8_t* const twos = block + 16 + part / 8 * 32 + part % 2 * 16;
      const int shift = part % 8 / 2 * 2;
      for (int i = 0; i < 16; ++i) {
        out[part * 16 + i] = scale * static_cast<float>(twos[i] >> shift & 3) - minimum;
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
