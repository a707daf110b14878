// Vector operations of the neon path (aarch64): 4 lanes, 32 registers.
// Included inside an unnamed namespace by the path's file.

struct Vector {
  static constexpr int kLanes = 4;
  using Float = float32x4_t;
  static Float zero() { return vdupq_n_f32(0.0f); }
  static Float set1(float x) { return vdupq_n_f32(x); }
  static Float load(const float* p) { return vld1q_f32(p); }
  static void store(float* p, Float x) { vst1q_f32(p, x); }
  static Float add(Float a, Float b) { return vaddq_f32(a, b); }
  static Float sub(Float a, Float b) { return vsubq_f32(a, b); }
  static Float mul(Float a, Float b) { return vmulq_f32(a, b); }
  static Float div(Float a, Float b) { return vdivq_f32(a, b); }
  static Float max(Float a, Float b) { return vmaxq_f32(a, b); }
  static Float fma(Float a, Float b, Float c) { return vfmaq_f32(c, a, b); }
  static void accumulate(Float& sum, Float a, Float b) { sum = fma(a, b, sum); }
  static float sum(Float x) { return sum_of_lanes<Vector>(x); }
  static float largest(Float x) { return largest_of_lanes<Vector>(x); }
  static Float zero_below(Float value, Float x, Float limit) {
    return vreinterpretq_f32_u32(vandq_u32(vreinterpretq_u32_f32(value), vcgeq_f32(x, limit)));
  }
  static Float keep_lanes(Float x, int begin, int end) {
    const int32x4_t lane = {0, 1, 2, 3};
    const uint32x4_t inside =
        vandq_u32(vcgtq_s32(vdupq_n_s32(end), lane), vcgeq_s32(lane, vdupq_n_s32(begin)));
    return vbslq_f32(inside, x, vdupq_n_f32(-__builtin_inff()));
  }
  static Float add_exponent(Float x, Float shifted) {
    return vreinterpretq_f32_s32(
        vaddq_s32(vreinterpretq_s32_f32(x), vshlq_n_s32(vreinterpretq_s32_f32(shifted), 23)));
  }
  static uint32x4_t load_bits(const std::byte* p) {
    return vreinterpretq_u32_u8(vld1q_u8(reinterpret_cast<const std::uint8_t*>(p)));
  }
  static Float even_bf16(const std::byte* p) {
    return vreinterpretq_f32_u32(vshlq_n_u32(load_bits(p), 16));
  }
  static Float odd_bf16(const std::byte* p) {
    return vreinterpretq_f32_u32(vandq_u32(load_bits(p), vdupq_n_u32(0xffff0000u)));
  }
  static Float load_f16(const std::byte* p) {
    return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(reinterpret_cast<const std::uint8_t*>(p))));
  }

  using Int = int32x4_t;
  static Int all(std::int32_t x) { return vdupq_n_s32(x); }
  static Int add_int(Int a, Int b) { return vaddq_s32(a, b); }
  static Int load_int(const std::byte* p) { return vreinterpretq_s32_u32(load_bits(p)); }
  static void store_int(std::byte* p, Int x) {
    vst1q_u8(reinterpret_cast<std::uint8_t*>(p), vreinterpretq_u8_s32(x));
  }
  /// As the avx512 path's.
  static Int widen_e4m3(const std::byte* p, Int exponents) {
    const uint8x16_t table = vreinterpretq_u8_u16(vld1q_u16(kSmallE4m3));
    const uint16x8_t codes = vmovl_u8(vld1_u8(reinterpret_cast<const std::uint8_t*>(p)));
    const uint16x8_t magnitudes = vandq_u16(codes, vdupq_n_u16(0x7f));
    const uint16x8_t bytes = vmlaq_n_u16(vdupq_n_u16(0x0100), magnitudes, 0x0202);  // 2 m and 2 m + 1
    const uint16x8_t of_small = vreinterpretq_u16_u8(vqtbl1q_u8(table, vreinterpretq_u8_u16(bytes)));
    uint16x8_t x = vbslq_u16(vcltq_u16(magnitudes, vdupq_n_u16(8)), of_small, vshlq_n_u16(magnitudes, 4));
    x = vandq_u16(vtstq_u16(magnitudes, magnitudes), vaddq_u16(x, vreinterpretq_u16_s32(exponents)));
    const uint16x8_t nan = vceqq_u16(magnitudes, vdupq_n_u16(0x7f));
    x = vorrq_u16(x, vandq_u16(nan, vdupq_n_u16(0x7fff)));
    return vreinterpretq_s32_u16(vorrq_u16(x, vshlq_n_u16(veorq_u16(codes, magnitudes), 8)));
  }
  /// As the avx512 path's.
  static Int load_repeated(const std::byte* p) { return load_int(p); }
  static bool any_below_16(const std::byte* p) {
    const auto* codes = reinterpret_cast<const std::uint8_t*>(p);
    const uint8x16_t upper = vdupq_n_u8(0x70);
    const uint8x16_t less = vminq_u8(
        vminq_u8(vandq_u8(vld1q_u8(codes), upper), vandq_u8(vld1q_u8(codes + 64), upper)),
        vminq_u8(vandq_u8(vld1q_u8(codes + 128), upper), vandq_u8(vld1q_u8(codes + 192), upper)));
    return vminvq_u8(less) == 0;
  }
  template <bool kBelow16>
  static void widen_codes(Int codes, const Int (&table)[4], Int& low, Int& high) {
    const auto bytes = vreinterpretq_u8_s32(codes);
    const uint8x16_t magnitudes = vandq_u8(bytes, vdupq_n_u8(0x7f));
    const uint8x16_t below_16 = vcltq_u8(magnitudes, vdupq_n_u8(16));
    const uint8x16_t places = vandq_u8(bytes, vdupq_n_u8(15));
    const auto look = [&](int i) {
      const uint8x16_t of_others = vqtbl1q_u8(vreinterpretq_u8_s32(table[i]), places);
      if constexpr (!kBelow16) return of_others;
      return vbslq_u8(below_16, vqtbl1q_u8(vreinterpretq_u8_s32(table[i + 2]), places), of_others);
    };
    const uint8x16_t lower = look(0);
    const uint8x16_t upper = veorq_u8(vaddq_u8(look(1), vshrq_n_u8(magnitudes, 4)), veorq_u8(bytes, magnitudes));
    low = vreinterpretq_s32_u8(vzip1q_u8(lower, upper));
    high = vreinterpretq_s32_u8(vzip2q_u8(lower, upper));
  }
  static void transpose(Int (&x)[4]) {
    const int64x2_t even = vreinterpretq_s64_s32(vtrn1q_s32(x[0], x[1]));  // words 0 and 2 of each
    const int64x2_t odd = vreinterpretq_s64_s32(vtrn2q_s32(x[0], x[1]));
    const int64x2_t later_even = vreinterpretq_s64_s32(vtrn1q_s32(x[2], x[3]));
    const int64x2_t later_odd = vreinterpretq_s64_s32(vtrn2q_s32(x[2], x[3]));
    x[0] = vreinterpretq_s32_s64(vtrn1q_s64(even, later_even));
    x[1] = vreinterpretq_s32_s64(vtrn1q_s64(odd, later_odd));
    x[2] = vreinterpretq_s32_s64(vtrn2q_s64(even, later_even));
    x[3] = vreinterpretq_s32_s64(vtrn2q_s64(odd, later_odd));
  }
  template <bool kSomeAre0>
  static Int add_exponents(Int pairs, Int exponents) {
    const auto values = vreinterpretq_u16_s32(pairs);
    const uint16x8_t some = vtstq_u16(values, vdupq_n_u16(0x7fff));
    return vreinterpretq_s32_u16(vaddq_u16(values, vandq_u16(some, vreinterpretq_u16_s32(exponents))));
  }
  static Float to_float(Int x) { return vcvtq_f32_s32(x); }
  static Float load_int8(const std::byte* p) {
    std::int8_t b[4];
    __builtin_memcpy(b, p, sizeof b);
    return vcvtq_f32_s32(int32x4_t{b[0], b[1], b[2], b[3]});
  }
  static uint32x4_t load_uint8(const std::byte* p) {
    std::uint8_t b[4];
    __builtin_memcpy(b, p, sizeof b);
    return uint32x4_t{b[0], b[1], b[2], b[3]};
  }
  /// These four as the avx512 path's.
  static Float load_powers(const std::byte* p) {
    const uint32x4_t twice = vmaxq_u32(vshlq_n_u32(load_uint8(p), 23), vdupq_n_u32(0x00400000));
    return mul(vreinterpretq_f32_u32(twice), set1(0.5f));
  }
  static Float load_steps(const std::byte* p, const float* steps) {
    const uint32x4_t codes = load_uint8(p);
    Float step;
    for (int i = 0; i < kLanes; ++i) step[i] = steps[codes[i] & 7];
    return add_exponent(step, vreinterpretq_f32_u32(vshrq_n_u32(codes, 3)));
  }
  using Table = Int;
  static Table load_table(const std::uint8_t* p) { return vreinterpretq_s32_u8(vld1q_u8(p)); }
  static Int look_up(Table table, Int places) {
    return vreinterpretq_s32_u8(
        vqtbl1q_u8(vreinterpretq_u8_s32(table), vreinterpretq_u8_s32(places)));
  }
  static Int low_nibbles(Int x) { return vandq_s32(x, vdupq_n_s32(0x0f0f0f0f)); }
  static Int high_nibbles(Int x) {
    return low_nibbles(vreinterpretq_s32_u32(vshrq_n_u32(vreinterpretq_u32_s32(x), 4)));
  }
  static constexpr bool kSignedEntries = false;
  static void dot_entries(Int& sums, Int w, Int x) { dot_bytes(sums, w, x); }
  static void dot_nibbles(Int& sums, Int w, Int x) { dot_bytes(sums, w, x); }
  static Int sum_of_nibbles(Int sums) { return sums; }
  static void dot_bytes(Int& sums, Int w, Int x) {
    const uint8x16_t codes = vreinterpretq_u8_s32(w);
    const int8x16_t values = vreinterpretq_s8_s32(x);
    const int16x8_t low = vreinterpretq_s16_u16(vmovl_u8(vget_low_u8(codes)));
    const int16x8_t high = vreinterpretq_s16_u16(vmovl_u8(vget_high_u8(codes)));
    const int16x8_t x_low = vmovl_s8(vget_low_s8(values));
    const int16x8_t x_high = vmovl_s8(vget_high_s8(values));
    const int32x4_t first = vpaddq_s32(vmull_s16(vget_low_s16(low), vget_low_s16(x_low)),
                                       vmull_high_s16(low, x_low));
    const int32x4_t second = vpaddq_s32(vmull_s16(vget_low_s16(high), vget_low_s16(x_high)),
                                        vmull_high_s16(high, x_high));
    sums = vaddq_s32(sums, vpaddq_s32(first, second));
  }
};

constexpr int columns_for(int rows) {
  return rows == 1 ? 16 : rows <= 3 ? 8 : 4;
}

/// Rows of a matmul tile: with its columns, what fits the registers.
constexpr int kMaxTileRows = 6;
constexpr std::int64_t max_tile_rows_for(std::int64_t) {
  return kMaxTileRows;
}
