#include "probes.h"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace dendrite::bench {
namespace {

constexpr std::int64_t kRounds = 200000;
constexpr int kChains = 12;
constexpr std::int64_t kTileRounds = 20000;

using Vector4 = float __attribute__((vector_size(16)));

float fma_128() {
  Vector4 a[kChains] = {};
  Vector4 x = {1.0f, 1.0f, 1.0f, 1.0f};
  Vector4 y = {0.9f, 0.9f, 0.9f, 0.9f};
  for (std::int64_t i = 0; i < kRounds; ++i) {
    for (int c = 0; c < kChains; ++c) a[c] = a[c] * y + x;
    asm volatile("" : "+g"(i));
  }
  float sum = 0;
  for (int c = 0; c < kChains; ++c) sum += a[c][0];
  return sum;
}

#if defined(__x86_64__)
// The chains are separate variables behind asm barriers: arrays would be spilled to the stack or
// folded into one chain.
#define DENDRITE_CHAINS(OP) \
  OP(0) OP(1) OP(2) OP(3) OP(4) OP(5) OP(6) OP(7) OP(8) OP(9) OP(10) OP(11)

__attribute__((target("avx2,fma"))) float fma_256() {
  __m256 x = _mm256_set1_ps(1.0000001f);
  __m256 y = _mm256_set1_ps(0.999f);
#define OP(i)                        \
  __m256 a##i = _mm256_setzero_ps(); \
  asm volatile("" : "+x"(a##i));
  DENDRITE_CHAINS(OP)
#undef OP
  for (std::int64_t i = 0; i < kRounds; ++i) {
#define OP(i) a##i = _mm256_fmadd_ps(x, y, a##i);
    DENDRITE_CHAINS(OP)
#undef OP
    asm volatile("" : "+x"(x), "+x"(y));
  }
  float sum = 0;
#define OP(i) sum += _mm256_cvtss_f32(a##i);
  DENDRITE_CHAINS(OP)
#undef OP
  return sum;
}

__attribute__((target("avx512f"))) float fma_512() {
  __m512 x = _mm512_set1_ps(1.0000001f);
  __m512 y = _mm512_set1_ps(0.999f);
#define OP(i)                        \
  __m512 a##i = _mm512_setzero_ps(); \
  asm volatile("" : "+v"(a##i));
  DENDRITE_CHAINS(OP)
#undef OP
  for (std::int64_t i = 0; i < kRounds; ++i) {
#define OP(i) a##i = _mm512_fmadd_ps(x, y, a##i);
    DENDRITE_CHAINS(OP)
#undef OP
    asm volatile("" : "+v"(x), "+v"(y));
  }
  float sum = 0;
#define OP(i) sum += _mm512_cvtss_f32(a##i);
  DENDRITE_CHAINS(OP)
#undef OP
  return sum;
}

__attribute__((target("avx512f,avx512bf16"))) float dot_512() {
  __m512i x = _mm512_set1_epi16(0x3f80);
  __m512i y = x;
#define OP(i)                        \
  __m512 a##i = _mm512_setzero_ps(); \
  asm volatile("" : "+v"(a##i));
  DENDRITE_CHAINS(OP)
#undef OP
  for (std::int64_t i = 0; i < kRounds; ++i) {
#define OP(i) \
  a##i = _mm512_dpbf16_ps(a##i, reinterpret_cast<__m512bh>(x), reinterpret_cast<__m512bh>(y));
    DENDRITE_CHAINS(OP)
#undef OP
    asm volatile("" : "+v"(x), "+v"(y));
  }
  float sum = 0;
#define OP(i) sum += _mm512_cvtss_f32(a##i);
  DENDRITE_CHAINS(OP)
#undef OP
  return sum;
}
#undef DENDRITE_CHAINS

/// 16 x 16 x 32 products of bf16 an instruction; whoever asks has a backend that asked for the
/// tiles.
__attribute__((target("avx512f"))) float tiles() {
  struct alignas(64) {
    std::uint8_t palette = 1, start_row = 0, reserved[14] = {};
    std::uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
    std::uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
  } config;
  asm volatile("ldtilecfg %0" : : "m"(config));
  for (std::int64_t i = 0; i < kTileRounds; ++i) {
    asm volatile(
        "tdpbf16ps %tmm6, %tmm4, %tmm0\n\ttdpbf16ps %tmm7, %tmm4, %tmm1\n\t"
        "tdpbf16ps %tmm6, %tmm5, %tmm2\n\ttdpbf16ps %tmm7, %tmm5, %tmm3");
  }
  asm volatile("tilerelease");
  return 0;
}
#endif

int lanes_of(const std::string& path) {
  if (path.starts_with("avx512") || path == "amx_bf16") return 16;
  return path == "avx2" ? 8 : 4;
}

}  // namespace

std::uint64_t read_probe(const std::byte* data, std::int64_t bytes) {
  using Bits = std::uint64_t __attribute__((vector_size(16)));
  Bits sum[8] = {};
  for (std::int64_t i = 0; i + 128 <= bytes; i += 128) {
    const auto* p = reinterpret_cast<const Bits*>(data + i);
    __builtin_prefetch(data + i + 4096);
    __builtin_prefetch(data + i + 4096 + 64);
    for (int c = 0; c < 8; ++c) sum[c] += p[c];
  }
  std::uint64_t total = 0;
  for (const Bits& s : sum) total += s[0] + s[1];
  return total;
}

std::int64_t arithmetic_probe_flops(const std::string& path, bool dot) {
  if (path == "amx_bf16" && dot) return kTileRounds * 4 * 16 * 16 * 32 * 2;
  return kRounds * kChains * lanes_of(path) * 2 * (dot ? 2 : 1);
}

float arithmetic_probe(const std::string& path, bool dot) {
#if defined(__x86_64__)
  if (path == "amx_bf16") return dot ? tiles() : fma_512();
  if (path.starts_with("avx512")) return dot ? dot_512() : fma_512();
  if (path == "avx2") return fma_256();
#endif
  (void)dot;
  return fma_128();
}

}  // namespace dendrite::bench
