// Rounding to bf16 by AVX512-BF16: to nearest even; subnormal values count as zero.
// Included inside an unnamed namespace by the path's file.

#define DENDRITE_ROUNDS_BF16 1

/// 32 values to 16 pairs of bf16.
DENDRITE_INLINE void round_pairs(std::uint32_t* out, Vector::Float low, Vector::Float high) {
  _mm512_storeu_si512(out, reinterpret_cast<__m512i>(_mm512_cvtne2ps_pbh(high, low)));
}
/// 16 values to 8 pairs.
DENDRITE_INLINE void round_pairs(std::uint32_t* out, Vector::Float values) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out),
                      reinterpret_cast<__m256i>(_mm512_cvtneps_pbh(values)));
}
