#include "quant/blocks.h"
#include "quant/formats.h"

namespace dendrite {
namespace {

/// 128 bytes of nibbles, 64 of the upper two bits, 16 signed scales, f16 d: (d * scale) * (q - 32).
/// Low bits of 64 bytes are 64 neighbours, high bits the next; upper bits as in q2_k.
class Q6KFormat final : public BlockFormat {
 public:
  Q6KFormat() : BlockFormat("q6_k", "Q6_K", 256, 210) {}

 private:
  void widen_block(const std::uint8_t* block, float* out) const override {
    const float d = half_at(block + 208);
    const auto* const scales = reinterpret_cast<const std::int8_t*>(block + 192);
    for (int i = 0; i < 256; ++i) {
      const float scale = d * static_cast<float>(scales[i / 16]);
      const int low = block[i / 128 * 64 + i % 64] >> (i / 64 % 2 * 4) & 15;
      const int high = block[128 + i / 128 * 32 + i % 32] >> (i / 32 % 4 * 2) & 3;
      out[i] = scale * static_cast<float>((low | high << 4) - 32);
    }
  }
};

}  // namespace

const Format& q6_k_format() {
  static const Q6KFormat format;
  return format;
}

}  // namespace dendrite
