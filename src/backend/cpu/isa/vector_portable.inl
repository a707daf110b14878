// Vector operations of the portable path: 4 lanes through the compilers' vector extension, which
// every target of GCC and Clang lowers to what it has. A product and a sum are two roundings here
// (no fused instruction is assumed, and the files are built without contraction).
// Included inside an unnamed namespace by the path's file.

struct Vector {
  static constexpr int kLanes = 4;
  using Float = float __attribute__((vector_size(16)));
  using Int = std::int32_t __attribute__((vector_size(16)));
  using Bits = std::uint32_t __attribute__((vector_size(16)));
  static Float set1(float x) { return Float{x, x, x, x}; }
  static Float zero() { return set1(0.0f); }
  static Float load(const float* p) {
    Float x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
  }
  static void store(float* p, Float x) { __builtin_memcpy(p, &x, sizeof x); }
  static Float add(Float a, Float b) { return a + b; }
  static Float sub(Float a, Float b) { return a - b; }
  static Float mul(Float a, Float b) { return a * b; }
  static Float div(Float a, Float b) { return a / b; }
  static Float max(Float a, Float b) { return select(a > b, a, b); }
  static Float fma(Float a, Float b, Float c) { return a * b + c; }
  static void accumulate(Float& sum, Float a, Float b) { sum = fma(a, b, sum); }
  static Float select(Int mask, Float a, Float b) {
    return reinterpret_cast<Float>((reinterpret_cast<Int>(a) & mask) |
                                   (reinterpret_cast<Int>(b) & ~mask));
  }
  static Float zero_below(Float value, Float x, Float limit) {
    return reinterpret_cast<Float>(reinterpret_cast<Int>(value) & (x >= limit));
  }
  static Float keep_lanes(Float x, int begin, int end) {
    const Int lane = {0, 1, 2, 3};
    const Int first = {begin, begin, begin, begin};
    const Int last = {end, end, end, end};
    return select((lane >= first) & (lane < last), x, set1(-__builtin_inff()));
  }
  static Float add_exponent(Float x, Float shifted) {
    return reinterpret_cast<Float>(reinterpret_cast<Bits>(x) +
                                   (reinterpret_cast<Bits>(shifted) << 23));
  }
  static Bits load_bits(const std::byte* p) {
    Bits x;
    __builtin_memcpy(&x, p, sizeof x);
    return x;
  }
  static Float even_bf16(const std::byte* p) { return reinterpret_cast<Float>(load_bits(p) << 16); }
  static Float odd_bf16(const std::byte* p) {
    return reinterpret_cast<Float>(load_bits(p) & 0xffff0000u);
  }
  /// Finite halves: shift exponent and mantissa into place and rescale by 2^112, which is exact for
  /// normal and subnormal values alike.
  static Float load_f16(const std::byte* p) {
    std::uint16_t h[4];
    __builtin_memcpy(h, p, sizeof h);
    const Bits half = {h[0], h[1], h[2], h[3]};
    const Float magnitude = reinterpret_cast<Float>((half & 0x7fffu) << 13) * set1(0x1p112f);
    return reinterpret_cast<Float>(reinterpret_cast<Bits>(magnitude) | ((half & 0x8000u) << 16));
  }
};

constexpr int columns_for(int rows) {
  return rows == 1 ? 8 : rows <= 3 ? 4 : 2;
}

/// Rows of a matmul tile: with its columns, what fits the registers.
constexpr int kMaxTileRows = 6;
constexpr std::int64_t max_tile_rows_for(std::int64_t) {
  return kMaxTileRows;
}
