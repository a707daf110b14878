#include <cstring>

#include "quant/formats.h"

namespace dendrite {
namespace {

class F16Format final : public PlainFormat {
 public:
  F16Format() : PlainFormat(DType::kF16, "F16") {}

  void widen(const StoredMatrix& matrix, std::int64_t row, std::int64_t begin,
             std::span<float> out) const override {
    const std::byte* from = matrix.row(row) + begin * 2;
    for (float& value : out) {
      F16 bits;
      std::memcpy(&bits, from, 2);
      value = to_f32(bits);
      from += 2;
    }
  }
  void narrow(std::span<const float> values, std::byte* out) const override {
    for (const float value : values) {
      const F16 bits = to_f16(value);
      std::memcpy(out, &bits, 2);
      out += 2;
    }
  }
};

}  // namespace

const PlainFormat& f16_format() {
  static const F16Format format;
  return format;
}

}  // namespace dendrite
