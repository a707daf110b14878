#include <array>
#include <string>

#include "quant/blocks.h"
#include "quant/e2m1.h"
#include "quant/e4m3.h"
#include "quant/formats.h"

namespace dendrite {
namespace {

/// Four scales of E4M3 (their sign has no meaning, NaN is none), 4 x 8 bytes of nibbles, low bits
/// first: E2M1 times the scale of its 16 values, which is multiplied with the one number in
/// "x.scale" before where the file has it.
class Nvfp4Format final : public BlockFormat {
 public:
  Nvfp4Format()
      : BlockFormat("nvfp4", "NVFP4", 64, 36,
                    {.codes = GroupCodes::kDoubledE2M1, .bits = 4, .size = 16}) {}

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

  std::optional<Groups> groups(const StoredMatrix& matrix) const override {
    Groups groups = *BlockFormat::groups(matrix);
    std::array<float, 8> steps = halved_e4m3_steps();
    apply_whole(matrix, steps);
    take_steps(steps, groups);
    return groups;
  }
  void read_groups(const StoredMatrix& matrix, std::int64_t row, std::int64_t begin,
                   std::int64_t count, GroupedValues& out) const override {
    BlockFormat::read_groups(matrix, row, begin, count, out);
    apply_whole(matrix, std::span(out.scales).first(static_cast<std::size_t>(count / 16)));
  }

 private:
  static void apply_whole(const StoredMatrix& matrix, std::span<float> scales) {
    if (matrix.scales.format == nullptr) return;
    float whole = 0;
    matrix.scales.widen(0, 0, {&whole, 1});
    for (float& scale : scales) scale *= whole;
  }

  void read_block(const std::uint8_t* block, std::int8_t* codes, float* scales, float*,
                  GroupedValues&) const override {
    for (int part = 0; part < 4; ++part) {
      scales[part] = e4m3_value(block[part] & 127) / 2;
      const std::uint8_t* const nibbles = block + 4 + part * 8;
      for (int i = 0; i < 16; ++i) {
        codes[part * 16 + i] = kDoubledE2M1[nibbles[i % 8] >> (i / 8 * 4) & 15];
      }
    }
  }
};

}  // namespace

const Format& nvfp4_format() {
  static const Nvfp4Format format;
  return format;
}

}  // namespace dendrite
