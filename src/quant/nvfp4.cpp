#include <array>
#include <string>

#include "quant/blocks.h"
#include "quant/e4m3.h"
#include "quant/formats.h"

namespace dendrite {
namespace {

/// Four scales of E4M3 (their sign has no meaning, NaN is none), 4 x 8 bytes of nibbles, low bits
/// first: E2M1 times the scale of its 16 values, and times the one number in "x.scale" where the
/// file has it.
class Nvfp4Format final : public Format {
 public:
  Nvfp4Format() : Format("nvfp4", "NVFP4", 64, 36) {}

  std::optional<StoredMatrix> find(const TensorSource& source, std::string_view name,
                                   std::int64_t rows, std::int64_t cols) const override {
    auto matrix = Format::find(source, name, rows, cols);
    constexpr std::string_view kWeight = "weight";
    if (!matrix || !name.ends_with(kWeight)) return matrix;
    const std::string scale = std::string(name.substr(0, name.size() - kWeight.size())) + "scale";
    const TensorInfo* const tensor = source.find(scale);
    if (tensor == nullptr) return matrix;
    check_shape(*tensor, std::array{std::int64_t{1}}, "of \"" + std::string(name) + "\"");
    const Format& format = require_plain(*tensor);
    check_bytes(*tensor, format.block_bytes());
    matrix->scales = {&format, tensor->data, 1, 1};
    return matrix;
  }

  void widen(const StoredMatrix& matrix, std::int64_t row, std::int64_t begin,
             std::span<float> out) const override {
    const auto* from =
        reinterpret_cast<const std::uint8_t*>(matrix.row(row)) + begin / block() * block_bytes();
    for (std::size_t i = 0; i < out.size(); i += 16) {
      const std::size_t part = i % 64 / 16;
      const float half = e4m3_value(from[part] & 127) / 2;
      const std::uint8_t* const nibbles = from + 4 + part * 8;
      for (std::size_t k = 0; k < 16; ++k) {
        const int q = nibbles[k % 8] >> (k / 8 * 4) & 15;
        out[i + k] = half * static_cast<float>(kDoubledE2M1[q]);
      }
      if (part == 3) from += block_bytes();
    }
    if (matrix.scales.format == nullptr) return;
    float whole = 0;
    matrix.scales.widen(0, 0, {&whole, 1});
    for (float& value : out) value *= whole;
  }
};

}  // namespace

const Format& nvfp4_format() {
  static const Nvfp4Format format;
  return format;
}

}  // namespace dendrite
