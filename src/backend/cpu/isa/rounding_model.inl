// Rounding to bf16 as AVX512-BF16 does it (rounding_avx512_bf16.inl), in plain C++.
// Included inside an unnamed namespace by the path's file.

#define DENDRITE_ROUNDS_BF16 1

/// Source: Intel's manual, VCVTNE2PS2BF16: subnormal values to zero, NaN stays one.
DENDRITE_INLINE std::uint32_t rounded_bf16(float value) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  if ((bits & 0x7f800000u) == 0) return bits >> 16 & 0x8000u;
  if ((bits & 0x7fffffffu) > 0x7f800000u) return bits >> 16 | 0x40u;
  return (bits + 0x7fffu + (bits >> 16 & 1u)) >> 16;
}

DENDRITE_INLINE void round_pairs(std::uint32_t* out, Vector::Float values) {
  for (int i = 0; i < Vector::kLanes; i += 2) {
    out[i / 2] = rounded_bf16(values[i]) | rounded_bf16(values[i + 1]) << 16;
  }
}
DENDRITE_INLINE void round_pairs(std::uint32_t* out, Vector::Float low, Vector::Float high) {
  round_pairs(out, low);
  round_pairs(out + Vector::kLanes / 2, high);
}
