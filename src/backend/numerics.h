#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "core/dtype.h"
#include "core/kv_format.h"
#include "quant/rounded.h"

namespace dendrite {

/// What products multiply. kF32: f32 values. kBF16: bf16 values where the device has such an
/// instruction, else f32 activations with widened weights, which is more exact. Sums are f32.
enum class ComputeFormat : std::uint8_t { kF32, kBF16 };

/// How a model computes. The residual stream, norms, RoPE and softmax are always f32. A weight has
/// a format of its own, as stored, unless `weights` says otherwise.
struct Numerics {
  ComputeFormat product = ComputeFormat::kBF16;
  KvFormat kv = KvFormat::kBF16;
  /// What weights are rounded to when they are loaded; none: they stay as stored, and packed ones
  /// are widened. Else packed ones that a device has a kernel for stay so, and the kernel may round
  /// what it multiplies them with.
  std::optional<DType> weights = DType::kBF16;
  /// What plain weights of layers, and the output matrix, are rounded to when they are loaded.
  WeightRounding rounding = WeightRounding::kNone;
  WeightRounding output = WeightRounding::kNone;

  bool operator==(const Numerics&) const = default;

  static const Numerics kF32;
  static const Numerics kBF16;
  static const Numerics kF16;  // activations, K and V as in kF32
};
inline constexpr Numerics Numerics::kF32{ComputeFormat::kF32, KvFormat::kF32, std::nullopt};
inline constexpr Numerics Numerics::kBF16{};
inline constexpr Numerics Numerics::kF16{ComputeFormat::kF32, KvFormat::kF32, DType::kF16};

/// What K and V are kept as where nothing else is asked for.
constexpr KvFormat usual_kv(ComputeFormat product) {
  return product == ComputeFormat::kF32 ? KvFormat::kF32 : KvFormat::kBF16;
}

/// As options say it.
inline std::string name_of(const Numerics& numerics) {
  if (numerics.weights == DType::kF16) return "f16";
  return numerics.product == ComputeFormat::kF32 ? "f32" : "bf16";
}

/// As numerics keys say it: bits are promised for each of these names.
inline std::string key_of(const Numerics& numerics) {
  std::string key = name_of(numerics);
  if (numerics.rounding != WeightRounding::kNone)
    key += std::string("/") + name_of(numerics.rounding);
  if (numerics.output != WeightRounding::kNone)
    key += std::string("/output_") + name_of(numerics.output);
  if (numerics.kv != usual_kv(numerics.product)) key += std::string("/kv_") + name_of(numerics.kv);
  return key;
}

}  // namespace dendrite
