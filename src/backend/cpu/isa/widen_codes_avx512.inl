// Codes of grouped weights to tiles of bf16, by AVX-512 BW.
// Included inside an unnamed namespace by the path's file.

/// Widens a unit of a panel's codes to pairs of bf16, in four tiles [16 pairs][16 columns] after one another.
DENDRITE_INLINE void widen_unit(const Groups& groups, const std::byte* codes, std::byte* out) {
  const __m512i low_pair = _mm512_broadcast_i32x4(
      _mm_setr_epi8(0, -1, 1, -1, 4, -1, 5, -1, 8, -1, 9, -1, 12, -1, 13, -1));
  const __m512i high_pair = _mm512_broadcast_i32x4(
      _mm_setr_epi8(2, -1, 3, -1, 6, -1, 7, -1, 10, -1, 11, -1, 14, -1, 15, -1));
  if (groups.bits == 4) {
    alignas(64) std::uint16_t values[32];  // a second time for what is in the bit above
    for (int i = 0; i < 32; ++i) {
      values[i] = static_cast<std::uint16_t>(bf16_of_code(meaning_of(groups, i % 16)));
    }
    const __m512i table = _mm512_load_si512(values);
    for (std::int64_t word = 0; word < 4; ++word, codes += kPanel * 4) {
      for (std::int64_t tile = 0; tile < 4; ++tile) {
        const __m512i eight = _mm512_loadu_si512(codes + tile * 64);
        const __m512i first = _mm512_shuffle_epi8(eight, low_pair);
        const __m512i second = _mm512_shuffle_epi8(eight, high_pair);
        std::byte* const to = out + tile * 1024 + word * 256;
        _mm512_store_si512(to, _mm512_permutexvar_epi16(first, table));
        _mm512_store_si512(to + 64, _mm512_permutexvar_epi16(second, table));
        _mm512_store_si512(to + 128,
                           _mm512_permutexvar_epi16(_mm512_srli_epi16(first, 4), table));
        _mm512_store_si512(to + 192,
                           _mm512_permutexvar_epi16(_mm512_srli_epi16(second, 4), table));
      }
    }
    return;
  }
  // A byte in the last place of 2^23 is a float; what is above `lowest` is left of it.
  const __m512i large = _mm512_set1_epi32(0x4b000000);
  const __m512 offset = _mm512_set1_ps(8388608.0f - static_cast<float>(groups.lowest));
  const auto float_of = [&](__m512i four, int byte) __attribute__((always_inline)) {
    const __m512i place = _mm512_add_epi8(
        _mm512_set1_epi8(static_cast<char>(byte)),
        _mm512_broadcast_i32x4(_mm_setr_epi8(0, 0, 0, 0, 4, 4, 4, 4, 8, 8, 8, 8, 12, 12, 12, 12)));
    const __m512i in_place = _mm512_mask_shuffle_epi8(large, 0x1111111111111111u, four, place);
    return _mm512_castps_si512(_mm512_sub_ps(_mm512_castsi512_ps(in_place), offset));
  };
  const __m512i upper = _mm512_broadcast_i32x4(
      _mm_setr_epi8(2, 3, 0, 0, 6, 7, 0, 0, 10, 11, 0, 0, 14, 15, 0, 0));
  const auto pair_of = [&](__m512i four, int byte) __attribute__((always_inline)) {
    return _mm512_mask_shuffle_epi8(float_of(four, byte + 1), 0x3333333333333333u,
                                    float_of(four, byte), upper);
  };
  for (std::int64_t word = 0; word < 8; ++word, codes += kPanel * 4) {
    for (std::int64_t tile = 0; tile < 4; ++tile) {
      const __m512i four = _mm512_loadu_si512(codes + tile * 64);
      std::byte* const to = out + tile * 1024 + word * 128;
      _mm512_store_si512(to, pair_of(four, 0));
      _mm512_store_si512(to + 64, pair_of(four, 2));
    }
  }
}
