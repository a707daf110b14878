#include "quant/blocks.h"
#include "quant/formats.h"

namespace dendrite {
namespace {

/// f16 d, 16 bytes of nibbles: d times one of sixteen uneven steps.
class Iq4NlFormat final : public BlockFormat {
 public:
  Iq4NlFormat()
      : BlockFormat("iq4_nl", "IQ4_NL", 32, 18, {.codes = GroupCodes::kUnevenSteps, .bits = 4}) {}

 private:
  void read_block(const std::uint8_t* block, std::int8_t* codes, float* scales, float*,
                  GroupedValues&) const override {
    scales[0] = half_at(block);
    for (int i = 0; i < 32; ++i) codes[i] = kUnevenSteps[nibble_at(block + 2, i)];
  }
};

}  // namespace

const Format& iq4_nl_format() {
  static const Iq4NlFormat format;
  return format;
}

}  // namespace dendrite
