#include "quant/e2m1.h"
#include "quant/formats.h"
#include "quant/small_floats.h"

namespace dendrite {
namespace {

/// E2M1 times the power of two of its 32 values, as OCP Microscaling Formats 1.0 has it. As
/// compressed-tensors writes it ("mxfp4-pack-quantized").
class Mxfp4PackedFormat final : public E2M1Format {
 public:
  Mxfp4PackedFormat() : E2M1Format("mxfp4", 32) {}

  std::optional<StoredMatrix> find(const TensorSource& source, std::string_view name,
                                   std::int64_t rows, std::int64_t cols) const override {
    for (const std::string_view suffix : {"_packed", ""}) {
      const auto tensors = tensors_of(source, name, suffix);
      if (tensors && is_e8m0(*tensors->scales)) {
        return matrix_of(*tensors, e8m0_scales(), rows, cols);
      }
    }
    return std::nullopt;
  }

 private:
  void choose_scales(const StoredMatrix&, Groups& groups) const override {
    groups.scales = GroupScales::kPowers;
  }
};

}  // namespace

const Format& mxfp4_packed_format() {
  static const Mxfp4PackedFormat format;
  return format;
}

}  // namespace dendrite
