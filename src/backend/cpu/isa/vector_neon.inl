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
};

constexpr int columns_for(int rows) {
  return rows == 1 ? 16 : rows <= 3 ? 8 : 4;
}

/// Rows of a matmul tile: with its columns, what fits the registers.
constexpr int kMaxTileRows = 6;
constexpr std::int64_t max_tile_rows_for(std::int64_t) {
  return kMaxTileRows;
}
