#include <cstring>

#include "quant/formats.h"

namespace dendrite {
namespace {

class F32Format final : public PlainFormat {
 public:
  F32Format() : PlainFormat(DType::kF32, "F32") {}

  void widen(const StoredMatrix& matrix, std::int64_t row, std::int64_t begin,
             std::span<float> out) const override {
    std::memcpy(out.data(), matrix.row(row) + begin * 4, out.size_bytes());
  }
  void narrow(std::span<const float> values, std::byte* out) const override {
    std::memcpy(out, values.data(), values.size_bytes());
  }
};

}  // namespace

const PlainFormat& f32_format() {
  static const F32Format format;
  return format;
}

}  // namespace dendrite
