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

/// Brings bytes nearer.
DENDRITE_INLINE void prefetch(const std::byte* from, std::int64_t bytes) {
  for (std::int64_t at = 0; at < bytes; at += 64) __builtin_prefetch(from + at, 0, 2);
}

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

/// The number that a code of grouped weights means, as panels hold it.
DENDRITE_INLINE int meaning_of(const Groups& groups, int code) {
  const std::int8_t* const table = table_of(groups.codes);
  return table == nullptr ? code + groups.lowest : table[code];
}

/// bf16 of m * 2^-9, the values of subnormal codes of E4M3, less the exponent 120 that those of others lack
/// (added in 16 bits); entry 0 has no meaning.
constexpr std::uint16_t kSmallE4m3[8] = {0,
                                         static_cast<std::uint16_t>((118 - 120) * 128),
                                         static_cast<std::uint16_t>((119 - 120) * 128),
                                         static_cast<std::uint16_t>((119 - 120) * 128 + 64),
                                         0,
                                         32,
                                         64,
                                         96};
