// Vector operations of the avx512, avx512_bf16 and amx_bf16 paths: 16 lanes, 32 registers.
// Included inside an unnamed namespace by the path's file.

struct Vector {
  static constexpr int kLanes = 16;
  using Float = __m512;
  static Float zero() { return _mm512_setzero_ps(); }
  static Float set1(float x) { return _mm512_set1_ps(x); }
  static Float load(const float* p) { return _mm512_loadu_ps(p); }
  static void store(float* p, Float x) { _mm512_storeu_ps(p, x); }
  static Float add(Float a, Float b) { return _mm512_add_ps(a, b); }
  static Float sub(Float a, Float b) { return _mm512_sub_ps(a, b); }
  static Float mul(Float a, Float b) { return _mm512_mul_ps(a, b); }
  static Float div(Float a, Float b) { return _mm512_div_ps(a, b); }
  static Float max(Float a, Float b) { return _mm512_max_ps(a, b); }
  static Float fma(Float a, Float b, Float c) { return _mm512_fmadd_ps(a, b, c); }
  static void accumulate(Float& sum, Float a, Float b) { sum = fma(a, b, sum); }
  static float sum(Float x) {
    const __m256 half = _mm256_add_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 part = _mm_add_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    part = _mm_add_ps(part, _mm_movehl_ps(part, part));
    return _mm_cvtss_f32(_mm_add_ss(part, _mm_movehdup_ps(part)));
  }
  static float largest(Float x) {
    const __m256 half = _mm256_max_ps(_mm512_castps512_ps256(x), _mm512_extractf32x8_ps(x, 1));
    __m128 part = _mm_max_ps(_mm256_castps256_ps128(half), _mm256_extractf128_ps(half, 1));
    part = _mm_max_ps(part, _mm_movehl_ps(part, part));
    return _mm_cvtss_f32(_mm_max_ss(part, _mm_movehdup_ps(part)));
  }
  /// value where x >= limit, else 0.
  static Float zero_below(Float value, Float x, Float limit) {
    return _mm512_maskz_mov_ps(_mm512_cmp_ps_mask(x, limit, _CMP_GE_OQ), value);
  }
  /// x in lanes [begin, end), else -inf.
  static Float keep_lanes(Float x, int begin, int end) {
    const unsigned below_end = end >= kLanes ? 0xffffu : (1u << end) - 1u;
    const unsigned below_begin = begin <= 0 ? 0u : (1u << begin) - 1u;
    return _mm512_mask_mov_ps(_mm512_set1_ps(-__builtin_inff()),
                              static_cast<__mmask16>(below_end & ~below_begin), x);
  }
  /// x * 2^n, n in the low bits of `shifted`.
  static Float add_exponent(Float x, Float shifted) {
    return _mm512_castsi512_ps(_mm512_add_epi32(
        _mm512_castps_si512(x), _mm512_slli_epi32(_mm512_castps_si512(shifted), 23)));
  }
  /// x - floor(x), rounded down; 0 for -inf.
  static Float fraction(Float x) {
    return _mm512_reduce_ps(x, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC);
  }
  /// p * 2^floor(x), rounded once.
  static Float scale(Float p, Float x) { return _mm512_scalef_ps(p, x); }
  /// Even and odd values of 16 pairs of bf16, widened.
  static Float even_bf16(const std::byte* p) {
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(p), 16));
  }
  static Float odd_bf16(const std::byte* p) {
    return _mm512_castsi512_ps(
        _mm512_and_si512(_mm512_loadu_si512(p), _mm512_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  static Float load_f16(const std::byte* p) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
  }

  using Int = __m512i;
  static Int all(std::int32_t x) { return _mm512_set1_epi32(x); }
  static Int add_int(Int a, Int b) { return _mm512_add_epi32(a, b); }
  static Int load_int(const std::byte* p) { return _mm512_loadu_si512(p); }
  static void store_int(std::byte* p, Int x) { _mm512_storeu_si512(p, x); }
  /// 2 * kLanes codes of E4M3 in bf16, times two powers of two in turns: exponents_of() in every lane.
  static Int widen_e4m3(const std::byte* p, Int exponents) {
    alignas(64) static constexpr std::uint16_t kSmall[32] = {
        0, kSmallE4m3[1], kSmallE4m3[2], kSmallE4m3[3], 0, kSmallE4m3[5], kSmallE4m3[6], kSmallE4m3[7]};
    const Int codes =
        _mm512_cvtepu8_epi16(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p)));
    const Int magnitudes = _mm512_and_si512(codes, _mm512_set1_epi16(0x7f));
    const __mmask32 small = _mm512_cmplt_epu16_mask(magnitudes, _mm512_set1_epi16(8));
    const Int shifted = _mm512_mask_permutexvar_epi16(_mm512_slli_epi16(magnitudes, 4), small, magnitudes,
                                                      _mm512_load_si512(kSmall));
    Int x = _mm512_maskz_add_epi16(_mm512_test_epi16_mask(magnitudes, magnitudes), shifted, exponents);
    const Int nan = _mm512_set1_epi16(0x7f);
    x = _mm512_mask_mov_epi16(x, _mm512_cmpeq_epi16_mask(magnitudes, nan), _mm512_set1_epi16(0x7fff));
    return _mm512_or_si512(x, _mm512_slli_epi16(_mm512_xor_si512(codes, magnitudes), 8));
  }
  /// 16 bytes in each 128 bits.
  static Int load_repeated(const std::byte* p) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  /// Whether a code of E4M3 in four vectors, 64 bytes apart, is below 16, its sign aside.
  static bool any_below_16(const std::byte* p) {
    const Int upper = _mm512_set1_epi8(0x70);
    return (_mm512_testn_epi8_mask(load_int(p), upper) | _mm512_testn_epi8_mask(load_int(p + 64), upper) |
            _mm512_testn_epi8_mask(load_int(p + 128), upper) |
            _mm512_testn_epi8_mask(load_int(p + 192), upper)) != 0;
  }
  /// Codes to bf16 by tables (CodesInfo): of each 128 bits the first eight, and the others.
  template <bool kBelow16>
  static void widen_codes(Int codes, const Int (&table)[4], Int& low, Int& high) {
    const Int magnitudes = _mm512_and_si512(codes, _mm512_set1_epi8(0x7f));
    Int lower = _mm512_shuffle_epi8(table[0], magnitudes);
    Int upper = _mm512_shuffle_epi8(table[1], magnitudes);
    if constexpr (kBelow16) {
      const __mmask64 below_16 = _mm512_cmplt_epu8_mask(magnitudes, _mm512_set1_epi8(16));
      lower = _mm512_mask_shuffle_epi8(lower, below_16, table[2], magnitudes);
      upper = _mm512_mask_shuffle_epi8(upper, below_16, table[3], magnitudes);
    }
    const Int more = _mm512_and_si512(_mm512_srli_epi16(magnitudes, 4), _mm512_set1_epi8(7));
    upper = _mm512_ternarylogic_epi32(_mm512_add_epi8(upper, more), codes, _mm512_set1_epi8(-128),
                                      0x78);  // the codes' signs
    low = _mm512_unpacklo_epi8(lower, upper);
    high = _mm512_unpackhi_epi8(lower, upper);
  }
  /// Words of 128 bits with those of four vectors: 4 x 4.
  static void transpose(Int (&x)[4]) {
    const Int even_low = _mm512_unpacklo_epi32(x[0], x[1]);
    const Int odd_low = _mm512_unpacklo_epi32(x[2], x[3]);
    const Int even_high = _mm512_unpackhi_epi32(x[0], x[1]);
    const Int odd_high = _mm512_unpackhi_epi32(x[2], x[3]);
    x[0] = _mm512_unpacklo_epi64(even_low, odd_low);
    x[1] = _mm512_unpackhi_epi64(even_low, odd_low);
    x[2] = _mm512_unpacklo_epi64(even_high, odd_high);
    x[3] = _mm512_unpackhi_epi64(even_high, odd_high);
  }
  /// To bf16 that are not 0.
  template <bool kSomeAre0>
  static Int add_exponents(Int pairs, Int exponents) {
    if constexpr (!kSomeAre0) return _mm512_add_epi16(pairs, exponents);
    const __mmask32 some = _mm512_test_epi16_mask(pairs, _mm512_set1_epi16(0x7fff));
    return _mm512_mask_add_epi16(pairs, some, pairs, exponents);
  }
  static Float to_float(Int x) { return _mm512_cvtepi32_ps(x); }
  static Float load_int8(const std::byte* p) {
    return _mm512_cvtepi32_ps(
        _mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
  }
  /// 2^(code - 128) of unsigned bytes up to 254.
  static Float load_powers(const std::byte* p) {
    const Int codes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const Int twice = _mm512_max_epi32(_mm512_slli_epi32(codes, 23), all(0x00400000));
    return mul(_mm512_castsi512_ps(twice), set1(0.5f));
  }
  /// Of bytes: steps[lower three bits] * 2^(upper five).
  static Float load_steps(const std::byte* p, const float* steps) {
    const Float table = _mm512_broadcast_f32x8(_mm256_loadu_ps(steps));
    const Int codes = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    return add_exponent(_mm512_permutexvar_ps(codes, table),
                        _mm512_castsi512_ps(_mm512_srli_epi32(codes, 3)));
  }
  /// Sixteen bytes, and of them those that bytes below 16 tell.
  using Table = Int;
  static Table load_table(const std::uint8_t* p) {
    return _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static Int look_up(Table table, Int places) { return _mm512_shuffle_epi8(table, places); }
  static Int low_nibbles(Int x) { return _mm512_and_si512(x, _mm512_set1_epi8(15)); }
  static Int high_nibbles(Int x) { return low_nibbles(_mm512_srli_epi16(x, 4)); }
#if defined(__AVX512VNNI__)
  /// Written out: GCC copies the sums of a tile and stores them in the inner loop.
  static void dot_bytes(Int& sums, Int w, Int x) {
    __asm__ volatile("vpdpbusd %2, %1, %0" : "+v"(sums) : "v"(w), "v"(x));
  }
  static void dot_nibbles(Int& sums, Int w, Int x) { dot_bytes(sums, w, x); }
  static constexpr bool kSignedEntries = false;
  static void dot_entries(Int& sums, Int w, Int x) { dot_bytes(sums, w, x); }
  static Int sum_of_nibbles(Int sums) { return sums; }
#else
  /// As the avx2 path's.
  static constexpr bool kSignedEntries = true;
  static void dot_entries(Int& sums, Int w, Int x) {
    const Int with_sign = _mm512_mask_sub_epi8(x, _mm512_movepi8_mask(w), _mm512_setzero_si512(), x);
    const Int pairs = _mm512_maddubs_epi16(_mm512_abs_epi8(w), with_sign);
    sums = _mm512_add_epi32(sums, _mm512_madd_epi16(pairs, _mm512_set1_epi16(1)));
  }
  static void dot_nibbles(Int& sums, Int w, Int x) {
    sums = _mm512_add_epi16(sums, _mm512_maddubs_epi16(w, x));
  }
  static Int sum_of_nibbles(Int sums) { return _mm512_madd_epi16(sums, _mm512_set1_epi16(1)); }
  static void dot_bytes(Int& sums, Int w, Int x) {
    const Int even = _mm512_madd_epi16(_mm512_and_si512(w, _mm512_set1_epi16(255)),
                                       _mm512_srai_epi16(_mm512_slli_epi16(x, 8), 8));
    const Int odd = _mm512_madd_epi16(_mm512_srli_epi16(w, 8), _mm512_srai_epi16(x, 8));
    sums = _mm512_add_epi32(sums, _mm512_add_epi32(even, odd));
  }
#endif
};

/// Column vectors of the micro-kernel for a number of rows: what fits 32 registers, with enough
/// independent chains to hide the latency when rows are few.
constexpr int columns_for(int rows) {
  return rows <= 2 ? 8 : rows <= 6 ? 4 : 2;
}

/// Rows of a matmul tile. Widening a vector of weights takes the ports of an FMA, so many rows go in
/// taller tiles; few rows are bound by memory, and walk it better in short ones.
constexpr int kMaxTileRows = 12;
constexpr std::int64_t max_tile_rows_for(std::int64_t rows) {
  return rows <= 12 ? 6 : kMaxTileRows;
}
