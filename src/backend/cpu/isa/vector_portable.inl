// Vector operations through the compilers' vector extension, which every target of GCC and Clang lowers
// to what it has: of the portable path (4 lanes; a product and a sum are two roundings: no fused
// instruction is assumed, and the files are built without contraction) and of models of other paths
// (their lanes, fused). The path's file says which: kPortableLanes, kPortableFused.
// Included inside an unnamed namespace by the path's file.

struct Vector {
  static constexpr int kLanes = kPortableLanes;
  using Float = float __attribute__((vector_size(4 * kPortableLanes)));
  using Int = std::int32_t __attribute__((vector_size(4 * kPortableLanes)));
  using Bits = std::uint32_t __attribute__((vector_size(4 * kPortableLanes)));
  static Float set1(float x) {
    Float all;
    for (int i = 0; i < kLanes; ++i) all[i] = x;
    return all;
  }
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
  static Float fma(Float a, Float b, Float c) {
    if constexpr (!kPortableFused) return a * b + c;
    for (int i = 0; i < kLanes; ++i) c[i] = __builtin_fmaf(a[i], b[i], c[i]);
    return c;
  }
  static void accumulate(Float& sum, Float a, Float b) { sum = fma(a, b, sum); }
  static Float select(Int mask, Float a, Float b) {
    return reinterpret_cast<Float>((reinterpret_cast<Int>(a) & mask) |
                                   (reinterpret_cast<Int>(b) & ~mask));
  }
  static float sum(Float x) { return sum_of_lanes<Vector>(x); }
  static float largest(Float x) { return largest_of_lanes<Vector>(x); }
  static Float zero_below(Float value, Float x, Float limit) {
    return reinterpret_cast<Float>(reinterpret_cast<Int>(value) & (x >= limit));
  }
  static Float keep_lanes(Float x, int begin, int end) {
    for (int i = 0; i < kLanes; ++i) {
      if (i < begin || i >= end) x[i] = -__builtin_inff();
    }
    return x;
  }
  static Float add_exponent(Float x, Float shifted) {
    return reinterpret_cast<Float>(reinterpret_cast<Bits>(x) +
                                   (reinterpret_cast<Bits>(shifted) << 23));
  }
  /// x - floor(x), rounded down; 0 for -inf.
  static Float fraction(Float x) {
    for (int i = 0; i < kLanes; ++i) {
      if (x[i] == -__builtin_inff()) {
        x[i] = 0.0f;
        continue;
      }
      const double exact = static_cast<double>(x[i]) - __builtin_floor(static_cast<double>(x[i]));
      const auto nearest = static_cast<float>(exact);
      const bool above = nearest == 1.0f || static_cast<double>(nearest) > exact;
      x[i] = above ? __builtin_nextafterf(nearest, 0.0f) : nearest;
    }
    return x;
  }
  /// p * 2^floor(x), rounded once; x <= 1.
  static Float scale(Float p, Float x) {
    for (int i = 0; i < kLanes; ++i) {
      const float power = __builtin_floorf(x[i]);
      p[i] = power < -300.0f ? 0.0f : __builtin_ldexpf(p[i], static_cast<int>(power));
    }
    return p;
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
    std::uint16_t h[kLanes];
    __builtin_memcpy(h, p, sizeof h);
    Bits half;
    for (int i = 0; i < kLanes; ++i) half[i] = h[i];
    const Float magnitude = reinterpret_cast<Float>((half & 0x7fffu) << 13) * set1(0x1p112f);
    return reinterpret_cast<Float>(reinterpret_cast<Bits>(magnitude) | ((half & 0x8000u) << 16));
  }

  static Int all(std::int32_t x) {
    Int out;
    for (int i = 0; i < kLanes; ++i) out[i] = x;
    return out;
  }
  static Int add_int(Int a, Int b) { return a + b; }
  static Int load_int(const std::byte* p) { return reinterpret_cast<Int>(load_bits(p)); }
  static void store_int(std::byte* p, Int x) { __builtin_memcpy(p, &x, sizeof x); }
  /// 2 * kLanes codes of E4M3 in bf16, times two powers of two in turns: exponents_of() in every lane.
  static Int widen_e4m3(const std::byte* p, Int exponents) {
    std::uint16_t halves[2 * kLanes];
    __builtin_memcpy(halves, &exponents, sizeof halves);
    for (std::uint16_t& half : halves) {
      const auto code = static_cast<unsigned>(*p++);
      const unsigned magnitude = code & 0x7fu;
      const unsigned shifted = magnitude < 8 ? kSmallE4m3[magnitude] : magnitude << 4;
      unsigned x = magnitude == 0 ? 0 : (shifted + half) & 0xffffu;
      if (magnitude == 0x7f) x = 0x7fff;
      half = static_cast<std::uint16_t>(x | (code & 0x80u) << 8);
    }
    Int x;
    __builtin_memcpy(&x, halves, sizeof x);
    return x;
  }
  /// As the avx512 path's; their loops, unrolled, are large.
  static Int load_repeated(const std::byte* p) {
    Int x;
    for (int i = 0; i < kLanes; ++i) __builtin_memcpy(&x[i], p + i % 4 * 4, 4);
    return x;
  }
  static bool any_below_16(const std::byte*) { return true; }
  template <bool kBelow16>
  static DENDRITE_NOINLINE void widen_codes(Int codes, const Int (&table)[4], Int& low, Int& high) {
    std::uint8_t bytes[4 * kLanes];
    std::uint8_t of_table[4][4 * kLanes];
    __builtin_memcpy(bytes, &codes, sizeof bytes);
    __builtin_memcpy(of_table, table, sizeof of_table);
    std::uint16_t values[2][2 * kLanes];
    for (int i = 0; i < 4 * kLanes; ++i) {
      const unsigned magnitude = bytes[i] & 0x7fu;
      const unsigned at = static_cast<unsigned>(i) / 16 * 16 + magnitude % 16;
      const int part = magnitude < 16 ? 2 : 0;
      const unsigned upper = of_table[part + 1][at] + magnitude / 16u;
      values[i % 16 / 8][i / 16 * 8 + i % 8] =
          static_cast<std::uint16_t>(of_table[part][at] | upper << 8 | (bytes[i] & 0x80u) << 8);
    }
    __builtin_memcpy(&low, values[0], sizeof low);
    __builtin_memcpy(&high, values[1], sizeof high);
  }
  static DENDRITE_NOINLINE void transpose(Int (&x)[4]) {
    for (int lane = 0; lane < kLanes; lane += 4) {
      for (int i = 0; i < 4; ++i) {
        for (int j = 0; j < i; ++j) {
          const std::int32_t word = x[i][lane + j];
          x[i][lane + j] = x[j][lane + i];
          x[j][lane + i] = word;
        }
      }
    }
  }
  template <bool kSomeAre0>
  static DENDRITE_NOINLINE Int add_exponents(Int pairs, Int exponents) {
    std::uint16_t values[2 * kLanes];
    std::uint16_t more[2 * kLanes];
    __builtin_memcpy(values, &pairs, sizeof values);
    __builtin_memcpy(more, &exponents, sizeof more);
    for (int i = 0; i < 2 * kLanes; ++i) {
      if ((values[i] & 0x7fffu) != 0) values[i] = static_cast<std::uint16_t>(values[i] + more[i]);
    }
    __builtin_memcpy(&pairs, values, sizeof pairs);
    return pairs;
  }
  static Float to_float(Int x) { return __builtin_convertvector(x, Float); }
  static Float load_int8(const std::byte* p) {
    std::int8_t b[kLanes];
    __builtin_memcpy(b, p, sizeof b);
    Int x;
    for (int i = 0; i < kLanes; ++i) x[i] = b[i];
    return to_float(x);
  }
  /// 2^(code - 128) of unsigned bytes up to 254.
  static Float load_powers(const std::byte* p) {
    Int twice;
    for (int i = 0; i < kLanes; ++i) {
      const auto code = static_cast<std::int32_t>(p[i]);
      twice[i] = code == 0 ? 0x00400000 : code << 23;
    }
    return reinterpret_cast<Float>(twice) * set1(0.5f);
  }
  /// Of bytes: steps[lower three bits] * 2^(upper five).
  static Float load_steps(const std::byte* p, const float* steps) {
    Float step;
    Int powers;
    for (int i = 0; i < kLanes; ++i) {
      const auto code = static_cast<std::int32_t>(p[i]);
      step[i] = steps[code & 7];
      powers[i] = code >> 3;
    }
    return add_exponent(step, reinterpret_cast<Float>(powers));
  }
  /// Sixteen bytes, and of them those that bytes below 16 tell.
  using Table = const std::uint8_t*;
  static Table load_table(const std::uint8_t* p) { return p; }
  static DENDRITE_NOINLINE Int look_up(Table table, Int places) {
    std::uint8_t bytes[4 * kLanes];
    __builtin_memcpy(bytes, &places, sizeof bytes);
    for (std::uint8_t& byte : bytes) byte = table[byte];
    __builtin_memcpy(&places, bytes, sizeof bytes);
    return places;
  }
  static Int low_nibbles(Int x) { return x & 0x0f0f0f0f; }
  static Int high_nibbles(Int x) { return x >> 4 & 0x0f0f0f0f; }
  /// Whether entries of a table are signed bytes, else they are from 0 on.
  static constexpr bool kSignedEntries = false;
  static void dot_entries(Int& sums, Int w, Int x) { dot_bytes(sums, w, x); }
  static void dot_nibbles(Int& sums, Int w, Int x) { dot_bytes(sums, w, x); }
  static Int sum_of_nibbles(Int sums) { return sums; }
  static void dot_bytes(Int& sums, Int w, Int x) {
    for (int shift = 0; shift < 32; shift += 8) sums += (w >> shift & 255) * (x << (24 - shift) >> 24);
  }
};

// A model is there for its bits alone: few shapes, and small code.
constexpr int columns_for(int rows) {
  return kPortableFused ? 1 : rows == 1 ? 8 : rows <= 3 ? 4 : 2;
}

/// Rows of a matmul tile: with its columns, what fits the registers.
constexpr int kMaxTileRows = kPortableFused ? 1 : 6;
constexpr std::int64_t max_tile_rows_for(std::int64_t) {
  return kMaxTileRows;
}
