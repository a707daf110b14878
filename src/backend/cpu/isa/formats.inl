// How a step of each weight format turns into FMAs: the heart of every product of this backend.
//   a[M][N] += x[M] * w[N]     M activation rows, N vectors of weight columns
// One accumulator an output and k in ascending order, so that an output's bits do not depend on M.
// Included inside an unnamed namespace by the path's file.

constexpr int kLanes = Vector::kLanes;
constexpr int kBlock = static_cast<int>(kBlockTokens);
using Float = Vector::Float;
using Int = Vector::Int;

/// Where the N column vectors of a step are: side by side, or scattered over pages.
struct Adjacent {
  const std::byte* first;
  template <int kBytes>
  DENDRITE_INLINE const std::byte* at(int column) const {
    return first + column * kBytes;
  }
};
template <int N>
struct Scattered {
  const std::byte* column[N];
  std::int64_t offset;
  template <int kBytes>
  DENDRITE_INLINE const std::byte* at(int c) const {
    return column[c] + offset;
  }
};

template <int M, int N>
DENDRITE_INLINE void multiply_add(Float (&a)[M][N], const Float (&w)[N], const float* x,
                                  std::int64_t x_stride) {
  DENDRITE_UNROLL
  for (int m = 0; m < M; ++m) {
    const Float value = Vector::set1(x[m * x_stride]);
    DENDRITE_UNROLL
    for (int c = 0; c < N; ++c) Vector::accumulate(a[m][c], w[c], value);
  }
}

struct F32Format {
  static constexpr StepFormat kFormat = StepFormat::kF32;
  using Word = float;
  static constexpr int kValues = 1;
  static constexpr int kWords = 1;
  static constexpr int kColumnBytes = kLanes * 4;
  template <int M, int N, class Columns>
  static DENDRITE_INLINE void step(Float (&a)[M][N], const Columns& columns, const Word* x,
                                   std::int64_t x_stride) {
    Float w[N];
    DENDRITE_UNROLL
    for (int c = 0; c < N; ++c) {
      w[c] = Vector::load(reinterpret_cast<const float*>(columns.template at<kColumnBytes>(c)));
    }
    multiply_add(a, w, x, x_stride);
  }
};

struct F16Format {
  static constexpr StepFormat kFormat = StepFormat::kF16;
  using Word = float;
  static constexpr int kValues = 1;
  static constexpr int kWords = 1;
  static constexpr int kColumnBytes = kLanes * 2;
  template <int M, int N, class Columns>
  static DENDRITE_INLINE void step(Float (&a)[M][N], const Columns& columns, const Word* x,
                                   std::int64_t x_stride) {
    Float w[N];
    DENDRITE_UNROLL
    for (int c = 0; c < N; ++c) w[c] = Vector::load_f16(columns.template at<kColumnBytes>(c));
    multiply_add(a, w, x, x_stride);
  }
};

/// bf16 pairs, widened in registers; the even value of a pair first.
struct BF16Format {
  static constexpr StepFormat kFormat = StepFormat::kBF16;
  using Word = float;
  static constexpr int kValues = 2;
  static constexpr int kWords = 2;
  static constexpr int kColumnBytes = kLanes * 4;
  template <int M, int N, class Columns>
  static DENDRITE_INLINE void step(Float (&a)[M][N], const Columns& columns, const Word* x,
                                   std::int64_t x_stride) {
    Float w[N];
    DENDRITE_UNROLL
    for (int c = 0; c < N; ++c) w[c] = Vector::even_bf16(columns.template at<kColumnBytes>(c));
    multiply_add(a, w, x, x_stride);
    DENDRITE_UNROLL
    for (int c = 0; c < N; ++c) w[c] = Vector::odd_bf16(columns.template at<kColumnBytes>(c));
    multiply_add(a, w, x + 1, x_stride);
  }
  /// One value of the pair alone; the other one of w is not looked at.
  template <int N>
  static DENDRITE_INLINE void half_step(Float (&a)[1][N], const Adjacent& columns, const Word* x,
                                        bool odd) {
    Float w[N];
    DENDRITE_UNROLL
    for (int c = 0; c < N; ++c) {
      const std::byte* p = columns.template at<kColumnBytes>(c);
      w[c] = odd ? Vector::odd_bf16(p) : Vector::even_bf16(p);
    }
    multiply_add(a, w, x + (odd ? 1 : 0), 0);
  }
};

#if defined(DENDRITE_DOT_BF16)
/// bf16 pairs by the dot instruction; activations are pairs of bf16 too.
struct DotFormat {
  static constexpr StepFormat kFormat = StepFormat::kDotBF16;
  using Word = std::uint32_t;
  static constexpr int kValues = 2;
  static constexpr int kWords = 1;
  static constexpr int kColumnBytes = kLanes * 4;
  template <int M, int N, class Columns>
  static DENDRITE_INLINE void step(Float (&a)[M][N], const Columns& columns, const Word* x,
                                   std::int64_t x_stride) {
    __m512bh w[N];
    DENDRITE_UNROLL
    for (int c = 0; c < N; ++c) {
      w[c] = reinterpret_cast<__m512bh>(_mm512_loadu_si512(columns.template at<kColumnBytes>(c)));
    }
    DENDRITE_UNROLL
    for (int m = 0; m < M; ++m) {
      const auto value =
          reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(x[m * x_stride])));
      DENDRITE_UNROLL
      for (int c = 0; c < N; ++c) a[m][c] = _mm512_dpbf16_ps(a[m][c], w[c], value);
    }
  }
  /// One value of the pair alone: the other one of w and of x is cleared.
  template <int N>
  static DENDRITE_INLINE void half_step(Float (&a)[1][N], const Adjacent& columns, const Word* x,
                                        bool odd) {
    const auto keep = odd ? 0xffff0000u : 0x0000ffffu;
    const __m512i mask = _mm512_set1_epi32(static_cast<int>(keep));
    const auto value = reinterpret_cast<__m512bh>(_mm512_set1_epi32(static_cast<int>(*x & keep)));
    DENDRITE_UNROLL
    for (int c = 0; c < N; ++c) {
      const __m512i w = _mm512_loadu_si512(columns.template at<kColumnBytes>(c));
      a[0][c] =
          _mm512_dpbf16_ps(a[0][c], reinterpret_cast<__m512bh>(_mm512_and_si512(w, mask)), value);
    }
  }
};
#endif

/// The formats that every path has; kDotBF16 is a path's own.
template <class... F>
struct FormatList {};
using CommonFormats = FormatList<F32Format, F16Format, BF16Format>;

/// 2^x for x <= 0 (and a little above); below -125 as at -125, which is nothing next to a sum of at
/// least 1. Relative error 2e-7. Split to n + f with f in [-1/2, 1/2], the series of 2^f, then n is
/// added to the exponent; the same operations in every lane.
DENDRITE_INLINE Float exp2_vector(Float x) {
  const Float magic = Vector::set1(12582912.0f);  // 1.5 * 2^23: leaves n in the low mantissa bits
  const Float clamped = Vector::max(x, Vector::set1(-125.0f));
  const Float shifted = Vector::add(clamped, magic);
  const Float f = Vector::sub(clamped, Vector::sub(shifted, magic));
  Float p = Vector::set1(1.5403530e-4f);
  p = Vector::fma(p, f, Vector::set1(1.3333558e-3f));
  p = Vector::fma(p, f, Vector::set1(9.6181291e-3f));
  p = Vector::fma(p, f, Vector::set1(5.5504109e-2f));
  p = Vector::fma(p, f, Vector::set1(2.4022651e-1f));
  p = Vector::fma(p, f, Vector::set1(6.9314718e-1f));
  p = Vector::fma(p, f, Vector::set1(1.0f));
  return Vector::add_exponent(p, shifted);
}

DENDRITE_INLINE std::int64_t smaller(std::int64_t a, std::int64_t b) {
  return a < b ? a : b;
}
DENDRITE_INLINE std::int64_t larger(std::int64_t a, std::int64_t b) {
  return a > b ? a : b;
}

/// Round to nearest even (finite values).
DENDRITE_INLINE std::uint32_t bf16_bits(float value) {
  std::uint32_t bits;
  __builtin_memcpy(&bits, &value, sizeof bits);
  return (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
}
DENDRITE_INLINE float bf16_value(std::uint32_t bits) {
  bits <<= 16;
  float value;
  __builtin_memcpy(&value, &bits, sizeof value);
  return value;
}
