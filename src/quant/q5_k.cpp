#include "quant/blocks.h"
#include "quant/formats.h"

namespace dendrite {
namespace {

/// As q4_k, with 32 bytes of fifth bits before the nibbles: bits k of 32 bytes are 32 neighbours.
class Q5KFormat final : public BlockFormat {
 public:
  Q5KFormat() : BlockFormat("q5_k", "Q5_K", 256, 176) {}

 private:
  void widen_block(const std::uint8_t* block, float* out) const override {
    const float d = half_at(block);
    const float dmin = half_at(block + 2);
    for (int part = 0; part < 8; ++part) {
      const Step step = step_at(block + 4, part, d, dmin);
      const std::uint8_t* const fifths = block + 16;
      const std::uint8_t* const nibbles = block + 48 + part / 2 * 32;
      for (int i = 0; i < 32; ++i) {
        const int q = (nibbles[i] >> (part % 2 * 4) & 15) | (fifths[i] >> part & 1) << 4;
        out[part * 32 + i] = step.scale * static_cast<float>(q) - step.minimum;
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
