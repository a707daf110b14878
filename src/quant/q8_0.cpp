#include <cstring>

#include "quant/blocks.h"
#include "quant/formats.h"

namespace dendrite {
namespace {

/// f16 d, 32 signed bytes: d * q.
class Q8_0Format final : public BlockFormat {
 public:
  Q8_0Format() : BlockFormat("q8_0", "Q8_0", 32, 34, Groups{}) {}

 private:
  void read_block(const std::uint8_t* block, std::int8_t* codes, float* scales, float*,
                  GroupedValues&) const override {
    scales[0] = half_at(block);
    std::memcpy(codes, block + 2, 32);
  }
};

}  // namespace

const Format& q8_0_format() {
  static const Q8_0Format format;
  return format;
}

}  // namespace dendrite
