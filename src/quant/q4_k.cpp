#include "quant/blocks.h"
#include "quant/formats.h"

namespace dendrite {
namespace {

/// f16 d, f16 dmin, 12 bytes of eight scales and minimums, 128 of nibbles: (d * scale) * q - dmin *
/// minimum. Low bits of 32 bytes are 32 neighbours, high bits the next.
class Q4KFormat final : public BlockFormat {
 public:
  Q4KFormat() : BlockFormat("q4_k", "Q4_K", 256, 144) {}

 private:
  void widen_block(const std::uint8_t* block, float* out) const override {
    const float d = half_at(block);
    const float dmin = half_at(block + 2);
    for (int part = 0; part < 8; ++part) {
      const Step step = step_at(block + 4, part, d, dmin);
      const std::uint8_t* const nibbles = block + 16 + part / 2 * 32;
      for (int i = 0; i < 32; ++i) {
        const int q = nibbles[i] >> (part % 2 * 4) & 15;
        out[part * 32 + i] = step.scale * static_cast<float>(q) - step.minimum;
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
