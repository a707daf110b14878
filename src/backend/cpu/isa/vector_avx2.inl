// Vector operations of the avx2 path: 8 lanes, 16 registers.
// Included inside an unnamed namespace by the path's file.

struct Vector {
  static constexpr int kLanes = 8;
  using Float = __m256;
  static Float zero() { return _mm256_setzero_ps(); }
  static Float set1(float x) { return _mm256_set1_ps(x); }
  static Float load(const float* p) { return _mm256_loadu_ps(p); }
  static void store(float* p, Float x) { _mm256_storeu_ps(p, x); }
  static Float add(Float a, Float b) { return _mm256_add_ps(a, b); }
  static Float sub(Float a, Float b) { return _mm256_sub_ps(a, b); }
  static Float mul(Float a, Float b) { return _mm256_mul_ps(a, b); }
  static Float div(Float a, Float b) { return _mm256_div_ps(a, b); }
  static Float max(Float a, Float b) { return _mm256_max_ps(a, b); }
  static Float fma(Float a, Float b, Float c) { return _mm256_fmadd_ps(a, b, c); }
  /// sum += a * b in place. Written out because compilers move the sums of a full tile about and
  /// spill some of them in the inner loop.
  static void accumulate(Float& sum, Float a, Float b) {
    __asm__ volatile("vfmadd231ps %2, %1, %0" : "+x"(sum) : "x"(a), "x"(b));
  }
  static float sum(Float x) {
    __m128 part = _mm_add_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    part = _mm_add_ps(part, _mm_movehl_ps(part, part));
    return _mm_cvtss_f32(_mm_add_ss(part, _mm_movehdup_ps(part)));
  }
  static float largest(Float x) {
    __m128 part = _mm_max_ps(_mm256_castps256_ps128(x), _mm256_extractf128_ps(x, 1));
    part = _mm_max_ps(part, _mm_movehl_ps(part, part));
    return _mm_cvtss_f32(_mm_max_ss(part, _mm_movehdup_ps(part)));
  }
  static Float zero_below(Float value, Float x, Float limit) {
    return _mm256_and_ps(value, _mm256_cmp_ps(x, limit, _CMP_GE_OQ));
  }
  static Float keep_lanes(Float x, int begin, int end) {
    const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
    const __m256i inside = _mm256_and_si256(_mm256_cmpgt_epi32(_mm256_set1_epi32(end), lane),
                                            _mm256_cmpgt_epi32(lane, _mm256_set1_epi32(begin - 1)));
    return _mm256_blendv_ps(_mm256_set1_ps(-__builtin_inff()), x, _mm256_castsi256_ps(inside));
  }
  static Float add_exponent(Float x, Float shifted) {
    return _mm256_castsi256_ps(_mm256_add_epi32(
        _mm256_castps_si256(x), _mm256_slli_epi32(_mm256_castps_si256(shifted), 23)));
  }
  static __m256i load_bits(const std::byte* p) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(p));
  }
  static Float even_bf16(const std::byte* p) {
    return _mm256_castsi256_ps(_mm256_shuffle_epi8(load_bits(p), _mm256_setr_epi8(-1,-1,0,1,-1,-1,4,5,-1,-1,8,9,-1,-1,12,13,-1,-1,0,1,-1,-1,4,5,-1,-1,8,9,-1,-1,12,13)));
  }
  static Float odd_bf16(const std::byte* p) {
    return _mm256_castsi256_ps(
        _mm256_and_si256(load_bits(p), _mm256_set1_epi32(static_cast<int>(0xffff0000u))));
  }
  static Float load_f16(const std::byte* p) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }

  using Int = __m256i;
  static Int all(std::int32_t x) { return _mm256_set1_epi32(x); }
  static Int add_int(Int a, Int b) { return _mm256_add_epi32(a, b); }
  static Int load_int(const std::byte* p) { return load_bits(p); }
  static void store_int(std::byte* p, Int x) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), x);
  }
  /// As the avx512 path's.
  static Int widen_e4m3(const std::byte* p, Int exponents) {
    const Int table = _mm256_broadcastsi128_si256(
        _mm_loadu_si128(reinterpret_cast<const __m128i*>(kSmallE4m3)));
    const Int codes = _mm256_cvtepu8_epi16(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
    const Int magnitudes = _mm256_and_si256(codes, _mm256_set1_epi16(0x7f));
    const Int bytes = _mm256_add_epi16(_mm256_mullo_epi16(magnitudes, _mm256_set1_epi16(0x0202)),
                                       _mm256_set1_epi16(0x0100));  // 2 m and 2 m + 1
    Int x = _mm256_blendv_epi8(_mm256_slli_epi16(magnitudes, 4), _mm256_shuffle_epi8(table, bytes),
                               _mm256_cmpgt_epi16(_mm256_set1_epi16(8), magnitudes));
    x = _mm256_andnot_si256(_mm256_cmpeq_epi16(magnitudes, _mm256_setzero_si256()),
                            _mm256_add_epi16(x, exponents));
    const Int nan = _mm256_cmpeq_epi16(magnitudes, _mm256_set1_epi16(0x7f));
    x = _mm256_or_si256(x, _mm256_and_si256(nan, _mm256_set1_epi16(0x7fff)));
    return _mm256_or_si256(x, _mm256_slli_epi16(_mm256_xor_si256(codes, magnitudes), 8));
  }
  /// 16 bytes in each 128 bits.
  static Int load_repeated(const std::byte* p) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  /// As the avx512 path's. A byte with its highest bit looks up 0.
  static bool any_below_16(const std::byte* p) {
    const Int less =
        _mm256_min_epu8(_mm256_min_epu8(magnitudes_of(load_int(p)), magnitudes_of(load_int(p + 64))),
                        _mm256_min_epu8(magnitudes_of(load_int(p + 128)), magnitudes_of(load_int(p + 192))));
    return _mm256_movemask_epi8(_mm256_cmpgt_epi8(_mm256_set1_epi8(16), less)) != 0;
  }
  static Int magnitudes_of(Int codes) { return _mm256_and_si256(codes, _mm256_set1_epi8(0x7f)); }
  template <bool kBelow16>
  static void widen_codes(Int codes, const Int (&table)[4], Int& low, Int& high) {
    const Int magnitudes = magnitudes_of(codes);
    const Int from_16 = kBelow16 ? _mm256_sub_epi8(magnitudes, _mm256_set1_epi8(16)) : magnitudes;
    Int lower = _mm256_shuffle_epi8(table[0], from_16);
    Int upper = _mm256_shuffle_epi8(table[1], from_16);
    if constexpr (kBelow16) {
      const Int below_16 = _mm256_add_epi8(magnitudes, _mm256_set1_epi8(0x70));
      lower = _mm256_or_si256(lower, _mm256_shuffle_epi8(table[2], below_16));
      upper = _mm256_or_si256(upper, _mm256_shuffle_epi8(table[3], below_16));
    }
    const Int more = _mm256_and_si256(_mm256_srli_epi16(magnitudes, 4), _mm256_set1_epi8(7));
    upper = _mm256_xor_si256(_mm256_add_epi8(upper, more), _mm256_xor_si256(codes, magnitudes));
    low = _mm256_unpacklo_epi8(lower, upper);
    high = _mm256_unpackhi_epi8(lower, upper);
  }
  static void transpose(Int (&x)[4]) {
    const Int even_low = _mm256_unpacklo_epi32(x[0], x[1]);
    const Int odd_low = _mm256_unpacklo_epi32(x[2], x[3]);
    const Int even_high = _mm256_unpackhi_epi32(x[0], x[1]);
    const Int odd_high = _mm256_unpackhi_epi32(x[2], x[3]);
    x[0] = _mm256_unpacklo_epi64(even_low, odd_low);
    x[1] = _mm256_unpackhi_epi64(even_low, odd_low);
    x[2] = _mm256_unpacklo_epi64(even_high, odd_high);
    x[3] = _mm256_unpackhi_epi64(even_high, odd_high);
  }
  template <bool kSomeAre0>
  static Int add_exponents(Int pairs, Int exponents) {
    if constexpr (!kSomeAre0) return _mm256_add_epi16(pairs, exponents);
    const Int none = _mm256_cmpeq_epi16(_mm256_add_epi16(pairs, pairs), _mm256_setzero_si256());
    return _mm256_add_epi16(pairs, _mm256_andnot_si256(none, exponents));
  }
  static Float to_float(Int x) { return _mm256_cvtepi32_ps(x); }
  static Float load_int8(const std::byte* p) {
    return _mm256_cvtepi32_ps(
        _mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
  }
  /// These four as the avx512 path's.
  static Float load_powers(const std::byte* p) {
    const Int codes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    const Int twice = _mm256_max_epi32(_mm256_slli_epi32(codes, 23), all(0x00400000));
    return mul(_mm256_castsi256_ps(twice), set1(0.5f));
  }
  static Float load_steps(const std::byte* p, const float* steps) {
    const Int codes = _mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)));
    return add_exponent(_mm256_permutevar8x32_ps(load(steps), codes),
                        _mm256_castsi256_ps(_mm256_srli_epi32(codes, 3)));
  }
  using Table = Int;
  static Table load_table(const std::uint8_t* p) {
    return _mm256_broadcastsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)));
  }
  static Int look_up(Table table, Int places) { return _mm256_shuffle_epi8(table, places); }
  static Int low_nibbles(Int x) { return _mm256_and_si256(x, _mm256_set1_epi8(15)); }
  static Int high_nibbles(Int x) { return low_nibbles(_mm256_srli_epi16(x, 4)); }
  /// Their magnitudes are up to 127, so pairs of products fit 16 bits once x has the sign.
  static constexpr bool kSignedEntries = true;
  static void dot_entries(Int& sums, Int w, Int x) {
    const Int pairs = _mm256_maddubs_epi16(_mm256_abs_epi8(w), _mm256_sign_epi8(x, w));
    sums = _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
  static void dot_nibbles(Int& sums, Int w, Int x) {
    sums = _mm256_add_epi16(sums, _mm256_maddubs_epi16(w, x));
  }
  static Int sum_of_nibbles(Int sums) { return _mm256_madd_epi16(sums, _mm256_set1_epi16(1)); }
  /// Pairs of products of unsigned and signed bytes do not fit 16 bits, so each is widened first.
  static void dot_bytes(Int& sums, Int w, Int x) {
    const Int even = _mm256_madd_epi16(_mm256_and_si256(w, _mm256_set1_epi16(255)),
                                       _mm256_srai_epi16(_mm256_slli_epi16(x, 8), 8));
    const Int odd = _mm256_madd_epi16(_mm256_srli_epi16(w, 8), _mm256_srai_epi16(x, 8));
    sums = _mm256_add_epi32(sums, _mm256_add_epi32(even, odd));
  }
};

/// Column vectors of the micro-kernel for a number of rows: what fits 16 registers.
constexpr int columns_for(int rows) {
  return rows == 1 ? 8 : rows <= 3 ? 4 : 2;
}

/// Rows of a matmul tile: with its columns, what fits the registers.
constexpr int kMaxTileRows = 6;
constexpr std::int64_t max_tile_rows_for(std::int64_t) {
  return kMaxTileRows;
}
