// Helpers of the kernel files. Everything in isa/*.inl lives in an unnamed namespace of the one
// file that includes it, and uses no inline function of the standard library: what is compiled for
// one instruction set can never be linked into code that runs on another.

#define DENDRITE_INLINE inline __attribute__((always_inline))
#define DENDRITE_NOINLINE __attribute__((noinline))
#if defined(__clang__)
#define DENDRITE_UNROLL _Pragma("clang loop unroll(full)")
#define DENDRITE_ROLLED _Pragma("clang loop unroll(disable)")
#else
#define DENDRITE_UNROLL _Pragma("GCC unroll 16")
#define DENDRITE_ROLLED _Pragma("GCC unroll 1")
#endif

/// The lanes' sum (largest), always by the same tree: each half onto the other. Paths may do it in registers.
template <class V>
DENDRITE_INLINE float sum_of_lanes(typename V::Float x) {
  float lane[V::kLanes];
  V::store(lane, x);
  for (int width = V::kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lane[i] += lane[i + width];
  }
  return lane[0];
}
template <class V>
DENDRITE_INLINE float largest_of_lanes(typename V::Float x) {
  float lane[V::kLanes];
  V::store(lane, x);
  for (int width = V::kLanes / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) lane[i] = lane[i] > lane[i + width] ? lane[i] : lane[i + width];
  }
  return lane[0];
}

/// A whole number of up to 8 bits as bf16, which is exact.
DENDRITE_INLINE std::uint32_t bf16_of_code(int code) {
  const auto value = static_cast<float>(code);
  std::uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return bits >> 16;
}
