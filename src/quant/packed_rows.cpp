#include "quant/packed_rows.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <numeric>

#include "core/dtype.h"
#include "quant/e4m3.h"

namespace dendrite {
namespace {

/// To nearest, ties to even, where |value| < 2^22. (std::nearbyint is a call for each value.)
float nearest(float value) {
  constexpr float kShift = 0x1.8p23F;
  return value + kShift - kShift;
}

float as_bf16(float value) {
  return to_f32(to_bf16(value));
}

/// The next number that bf16 and f16 both have.
float as_either(float value) {
  return as_bf16(to_f32(to_f16(value)));
}

float largest(std::span<const float> values) {
  float most = 0;
  for (const float value : values) most = std::max(most, std::abs(value));
  return most;
}

/// What divides by a scale; of one that is too small for a number, 0: all codes are 0 then.
float inverse(float scale) {
  const float out = 1 / scale;
  return std::isfinite(out) ? out : 0;
}

void pack_fp8(std::span<float> values, std::byte* bytes, float& scale) {
  scale = as_bf16(largest(values) / kMostE4M3);
  const float factor = inverse(scale);
  const std::array<float, 256>& meant = e4m3_values();
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint8_t code = e4m3_code(values[i] * factor);
    bytes[i] = static_cast<std::byte>(code);
    values[i] = meant[code] * scale;
  }
}

void pack_int8(std::span<float> values, std::byte* bytes, float& scale) {
  scale = as_bf16(largest(values) / 127);
  const float factor = inverse(scale);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float code = std::clamp(nearest(values[i] * factor), -127.0F, 127.0F);
    bytes[i] = static_cast<std::byte>(static_cast<std::int8_t>(code));
    values[i] = code * scale;
  }
}

float code_of_four(float value, float factor) {
  return std::clamp(nearest(value * factor), -8.0F, 7.0F);
}

/// The sum of importance * error^2, of whole eights.
float error_with(float scale, std::span<const float> values, std::span<const float> importance) {
  constexpr std::size_t kLanes = 8;
  const float factor = inverse(scale);
  std::array<float, kLanes> sums{};
  for (std::size_t i = 0; i < values.size(); i += kLanes) {
    for (std::size_t k = 0; k < kLanes; ++k) {
      const float value = values[i + k];
      const float off = code_of_four(value, factor) * scale - value;
      sums[k] += importance[i + k] * off * off;
    }
  }
  return std::accumulate(sums.begin(), sums.end(), 0.0F);
}

/// The largest value is 7 to 10 steps away from 0, where codes end at -8 and 7.
float best_scale(std::span<const float> values, std::span<const float> importance) {
  constexpr float kFewestSteps = 7;
  constexpr int kScales = 13;
  const float most = largest(values);
  float best = as_either(most / kFewestSteps);
  float least = error_with(best, values, importance);
  for (int i = 1; i < kScales; ++i) {
    const float scale = as_either(most / (kFewestSteps + 0.25F * static_cast<float>(i)));
    const float error = error_with(scale, values, importance);
    if (error < least) {
      least = error;
      best = scale;
    }
  }
  return best;
}

void pack_int4(std::span<float> values, std::span<const float> importance, std::byte* bytes,
               float& scale) {
  scale = best_scale(values, importance);
  const float factor = inverse(scale);
  for (std::size_t i = 0; i < values.size(); i += 2) {  // little-endian words: pairs in order
    const float low = code_of_four(values[i], factor);
    const float high = code_of_four(values[i + 1], factor);
    bytes[i / 2] =
        static_cast<std::byte>((static_cast<int>(low) + 8) | (static_cast<int>(high) + 8) << 4);
    values[i] = low * scale;
    values[i + 1] = high * scale;
  }
}

}  // namespace

void pack_row(const RowPacking& packing, std::span<float> values, std::span<const float> importance,
              std::byte* bytes, std::span<float> scales) {
  const std::size_t size = values.size() / scales.size();
  for (std::size_t g = 0; g < scales.size(); ++g) {
    const auto group = values.subspan(g * size, size);
    std::byte* const out = bytes + packing.row_bytes(static_cast<std::int64_t>(g * size));
    switch (packing.kind) {
      case PackedKind::kFp8:
        pack_fp8(group, out, scales[g]);
        break;
      case PackedKind::kInt8:
        pack_int8(group, out, scales[g]);
        break;
      case PackedKind::kInt4:
        pack_int4(group, importance.subspan(g * size, size), out, scales[g]);
        break;
    }
  }
}

}  // namespace dendrite
