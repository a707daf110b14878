#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace dendrite {

/// Number types that devices compute with as they are stored.
enum class DType : std::uint8_t { kF32, kF16, kBF16 };

constexpr std::int64_t size_of(DType dtype) {
  return dtype == DType::kF32 ? 4 : 2;
}

constexpr const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "f32";
    case DType::kF16:
      return "f16";
    case DType::kBF16:
      return "bf16";
  }
  return "?";
}

/// Raw bits of a bfloat16; its own type, so that bits are never taken for a number.
enum class BF16 : std::uint16_t {};
/// Raw bits of an IEEE half.
enum class F16 : std::uint16_t {};

inline float to_f32(BF16 value) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(value) << 16);
}

/// Round to nearest even; NaN stays NaN (quiet).
inline BF16 to_bf16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  if ((bits & 0x7fffffffu) > 0x7f800000u) {
    return static_cast<BF16>((bits >> 16) | 0x40u);
  }
  return static_cast<BF16>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}

inline float to_f32(F16 value) {
  const auto half = static_cast<std::uint32_t>(value);
  const std::uint32_t sign = (half & 0x8000u) << 16;
  const std::uint32_t exponent = (half >> 10) & 0x1fu;
  const std::uint32_t mantissa = half & 0x3ffu;
  if (exponent == 0x1f) return std::bit_cast<float>(sign | 0x7f800000u | (mantissa << 13));
  if (exponent != 0)
    return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
  const float subnormal = static_cast<float>(mantissa) * 0x1p-24f;  // exact
  return std::bit_cast<float>(sign | std::bit_cast<std::uint32_t>(subnormal));
}

/// Round to nearest even; beyond the largest half, infinity.
inline F16 to_f16(float value) {
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000u;
  const std::uint32_t magnitude = bits & 0x7fffffffu;
  if (magnitude > 0x7f800000u) return static_cast<F16>(sign | 0x7e00u);
  if (magnitude >= 0x477ff000u) return static_cast<F16>(sign | 0x7c00u);  // rounds past 65504
  if (magnitude < 0x38800000u) {  // subnormal: let an addition round at the right bit
    const float rounded = std::bit_cast<float>(magnitude) + 0.5f;
    return static_cast<F16>(sign | (std::bit_cast<std::uint32_t>(rounded) - 0x3f000000u));
  }
  const std::uint32_t odd = magnitude >> 13 & 1u;
  return static_cast<F16>(sign | ((magnitude - 0x38000000u + 0xfffu + odd) >> 13));
}

/// Element `i` of a run of numbers, widened.
inline float stored_value(const std::byte* data, DType number, std::int64_t i) {
  if (number == DType::kF32) {
    float value;
    std::memcpy(&value, data + i * 4, 4);
    return value;
  }
  std::uint16_t bits;
  std::memcpy(&bits, data + i * 2, 2);
  return number == DType::kBF16 ? to_f32(static_cast<BF16>(bits)) : to_f32(static_cast<F16>(bits));
}

}  // namespace dendrite
