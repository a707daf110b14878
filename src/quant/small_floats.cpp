#include "quant/small_floats.h"

#include <array>
#include <cmath>
#include <limits>

#include "quant/e4m3.h"

namespace dendrite {
namespace {

/// Source: OCP Microscaling Formats 1.0.
std::array<float, 256> all_e8m0() {
  std::array<float, 256> values{};
  for (int e = 0; e < 255; ++e) values[static_cast<std::size_t>(e)] = std::ldexp(1.0F, e - 127);
  values[255] = std::numeric_limits<float>::quiet_NaN();
  return values;
}

class ByteScales final : public Format {
 public:
  ByteScales(std::string_view name, std::string_view stored_type,
             const std::array<float, 256>& values)
      : Format(name, stored_type, 1, 1), values_(values) {}
  void widen(const StoredMatrix& numbers, std::int64_t row, std::int64_t begin,
             std::span<float> out) const override {
    const std::byte* from = numbers.row(row) + begin;
    for (float& value : out) value = values_[std::to_integer<std::size_t>(*from++)];
  }

 private:
  const std::array<float, 256>& values_;
};

}  // namespace

const Format& e4m3_scales() {
  static const ByteScales scales("E4M3 scales", "F8_E4M3", e4m3_values());
  return scales;
}

const Format& e8m0_scales() {
  static const std::array<float, 256> values = all_e8m0();
  static const ByteScales scales("E8M0 scales", "F8_E8M0", values);
  return scales;
}

bool is_e8m0(const TensorInfo& tensor) {
  return tensor.stored_type == "F8_E8M0" || tensor.stored_type == "U8";
}

}  // namespace dendrite
