#include <cmath>
#include <limits>

#include "quant/blocks.h"
#include "quant/formats.h"

namespace dendrite {
namespace {

/// A byte e, 16 bytes of nibbles: E2M1 times 2^(e - 127), as OCP Microscaling Formats 1.0 has it.
/// Of e 255, which is no number there, GGUF makes 2^128: beyond what E2M1 needs, so it is NaN here.
class Mxfp4Format final : public BlockFormat {
 public:
  Mxfp4Format()
      : BlockFormat(
            "mxfp4", "MXFP4", 32, 17,
            {.codes = GroupCodes::kDoubledE2M1, .bits = 4, .scales = GroupScales::kPowers}) {}

 private:
  void read_block(const std::uint8_t* block, std::int8_t* codes, float* scales, float*,
                  GroupedValues&) const override {
    const int e = block[0];
    scales[0] = e == 255 ? std::numeric_limits<float>::quiet_NaN() : std::ldexp(0.5F, e - 127);
    for (int i = 0; i < 32; ++i) codes[i] = kDoubledE2M1[nibble_at(block + 1, i)];
  }
};

}  // namespace

const Format& mxfp4_format() {
  static const Mxfp4Format format;
  return format;
}

}  // namespace dendrite
