#include <array>

#include "dendrite/error.h"
#include "quant/e2m1.h"
#include "quant/formats.h"
#include "quant/small_floats.h"

namespace dendrite {
namespace {

/// E2M1 times the E4M3 of its 16 values, and one number of f32 for all of the matrix: by which
/// compressed-tensors ("nvfp4-pack-quantized") divides, and with which Model Optimizer multiplies.
/// It and a scale make one number of f32 first.
class Nvfp4PackedFormat final : public E2M1Format {
 public:
  Nvfp4PackedFormat(std::string_view packed, std::string_view whole, std::string_view input_whole,
                    bool divides)
      : E2M1Format("nvfp4", 16),
        packed_(packed),
        whole_(whole),
        input_whole_(input_whole),
        divides_(divides) {}

  std::optional<StoredMatrix> find(const TensorSource& source, std::string_view name,
                                   std::int64_t rows, std::int64_t cols) const override {
    const auto tensors = tensors_of(source, name, packed_);
    if (!tensors || is_e8m0(*tensors->scales)) return std::nullopt;
    StoredMatrix matrix = matrix_of(*tensors, e4m3_scales(), rows, cols);
    matrix.whole = find_whole(source, std::string(name) + std::string(whole_), *tensors->data);
    refuse_scaled_inputs(source, name);
    const std::string inputs = beside(name, input_whole_);
    if (source.find(inputs) != nullptr) {
      matrix.input_whole = find_whole(source, inputs, *tensors->data);
    }
    return matrix;
  }

 private:
  static Companion find_whole(const TensorSource& source, const std::string& name,
                              const TensorInfo& of) {
    const TensorInfo* const tensor = source.find(name);
    if (tensor == nullptr) {
      throw Error(std::string(of.file) + ": holds no tensor \"" + name + "\", which \"" + of.name +
                  "\" does not go without");
    }
    if (!tensor->shape.empty())
      check_shape(*tensor, std::array{std::int64_t{1}}, "of \"" + of.name + "\"");
    const Format& format = require_plain(*tensor);
    check_bytes(*tensor, format.block_bytes());
    return {&format, tensor->data, 1, 1};
  }

  /// The name of what goes with "x.weight": "x." and the other's; else empty.
  static std::string beside(std::string_view name, std::string_view other) {
    constexpr std::string_view kWeight = "weight";
    if (!name.ends_with(kWeight)) return {};
    return std::string(name.substr(0, name.size() - kWeight.size())) + std::string(other);
  }

  /// AWQ's factors of what comes in.
  static void refuse_scaled_inputs(const TensorSource& source, std::string_view name) {
    const std::string factors = beside(name, "pre_quant_scale");
    if (const TensorInfo* const tensor = source.find(factors)) {
      throw Error(std::string(tensor->file) + ": tensor \"" + factors +
                  "\" is not supported; expected NVFP4 without factors of its inputs");
    }
  }

  void choose_scales(const StoredMatrix& matrix, Groups& groups) const override {
    std::array<float, 8> steps = halved_e4m3_steps();
    apply_whole(matrix, steps);
    take_steps(steps, groups);
  }

  void apply_whole(const StoredMatrix& matrix, std::span<float> scales) const override {
    float whole = 0;
    matrix.whole.widen(0, 0, {&whole, 1});
    for (float& scale : scales) scale = divides_ ? scale / whole : scale * whole;
  }

  std::string_view packed_, whole_, input_whole_;
  bool divides_;
};

}  // namespace

const Format& nvfp4_packed_format() {
  static const Nvfp4PackedFormat format("_packed", "_global_scale", "input_global_scale", true);
  return format;
}

const Format& nvfp4_modelopt_format() {
  static const Nvfp4PackedFormat format("", "_scale_2", "input_scale", false);
  return format;
}

}  // namespace dendrite
