#include "quant/blocks.h"
#include "quant/formats.h"

namespace dendrite {
namespace {

/// f16 d, 32 signed bytes: d * q.
class Q8_0Format final : public BlockFormat {
 public:
  Q8_0Format() : BlockFormat("q8_0", "Q8_0", 32, 34) {}

 private:
  void widen_block(const std::uint8_t* block, float* out) const override {
    const float d = half_at(block);
    const auto* const q = reinterpret_cast<const std::int8_t*>(block + 2);
    for (int i = 0; i < 32; ++i) out[i] = d * static_cast<float>(q[i]);
  }
};

}  // namespace

const Format& q8_0_format() {
  static const Q8_0Format format;
  return format;
}

}  // namespace dendrite
