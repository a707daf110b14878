// Dot products, and sums of vectors with weights, in an order that does not depend on how many are formed
// together, nor on the width of vectors. Vectors are padded with zeros to a multiple of kDeltaPad.
// Included inside an unnamed namespace by the path's file.

constexpr int kParts = static_cast<int>(kDeltaPad) / kLanes;

/// Folds 16 partial sums by halves.
DENDRITE_INLINE float fold_parts(Float (&part)[kParts]) {
  for (int width = kParts / 2; width > 0; width /= 2) {
    for (int i = 0; i < width; ++i) part[i] = Vector::add(part[i], part[i + width]);
  }
  return Vector::sum(part[0]);
}

/// a . b; `count` is a multiple of kDeltaPad.
DENDRITE_INLINE float dot_of(const float* a, const float* b, std::int64_t count) {
  Float part[kParts];
  for (Float& sum : part) sum = Vector::zero();
  for (std::int64_t i = 0; i < count; i += kDeltaPad) {
    DENDRITE_UNROLL
    for (int c = 0; c < kParts; ++c) {
      part[c] = Vector::fma(Vector::load(a + i + c * kLanes), Vector::load(b + i + c * kLanes), part[c]);
    }
  }
  return fold_parts(part);
}

/// out[m] = factor * from[m] + sum over i of x[m, i] * terms[i], i upwards; all of vectors of values.
struct WeightedSum {
  const float* terms = nullptr;  // [count]
  std::int64_t term_stride = 0;
  std::int64_t count = 0;
  const float* x = nullptr;
  std::int64_t x_row = 0;
  std::int64_t x_step = 0;
  const float* from = nullptr;  // null: zeros
  std::int64_t from_stride = 0;
  float factor = 1;
  const float* factors = nullptr;  // of each row, in place of `factor`
  float* out = nullptr;  // may be `from`
  std::int64_t out_stride = 0;
};

template <int M, int N>
DENDRITE_INLINE void sum_tile(const WeightedSum& sum, std::int64_t row, std::int64_t column) {
  Float a[M][N];
  DENDRITE_UNROLL
  for (int m = 0; m < M; ++m) {
    const Float factor = Vector::set1(sum.factors == nullptr ? sum.factor : sum.factors[row + m]);
    DENDRITE_UNROLL
    for (int c = 0; c < N; ++c) {
      a[m][c] = sum.from == nullptr
                    ? Vector::zero()
                    : Vector::mul(factor, Vector::load(sum.from + (row + m) * sum.from_stride + column +
                                                       c * kLanes));
    }
  }
  const float* terms = sum.terms + column;
  const float* x = sum.x + row * sum.x_row;
  for (std::int64_t i = 0; i < sum.count; ++i, terms += sum.term_stride, x += sum.x_step) {
    Float term[N];
    DENDRITE_UNROLL
    for (int c = 0; c < N; ++c) term[c] = Vector::load(terms + c * kLanes);
    DENDRITE_UNROLL
    for (int m = 0; m < M; ++m) {
      const Float value = Vector::set1(x[m * sum.x_row]);
      DENDRITE_UNROLL
      for (int c = 0; c < N; ++c) Vector::accumulate(a[m][c], value, term[c]);
    }
  }
  DENDRITE_UNROLL
  for (int m = 0; m < M; ++m) {
    DENDRITE_UNROLL
    for (int c = 0; c < N; ++c) {
      Vector::store(sum.out + (row + m) * sum.out_stride + column + c * kLanes, a[m][c]);
    }
  }
}

/// From `column` on, in tiles of N vectors, then of fewer.
template <int M, int N>
DENDRITE_INLINE void sum_columns(const WeightedSum& sum, std::int64_t row, std::int64_t column,
                                 std::int64_t columns) {
  for (; column + N * kLanes <= columns; column += N * kLanes) sum_tile<M, N>(sum, row, column);
  if constexpr (N > 1) sum_columns<M, N / 2>(sum, row, column, columns);
}

template <int M>
DENDRITE_NOINLINE void sum_rows_of(const WeightedSum& sum, std::int64_t row, std::int64_t columns) {
  sum_columns<M, columns_for(M)>(sum, row, 0, columns);
}

/// Terms that many rows take together: 32 KB of a state with value_dim 128, which stay in L1 meanwhile.
constexpr std::int64_t kTermBlock = 64;

/// `columns` is a multiple of kDeltaPad.
void sum_rows(WeightedSum sum, std::int64_t rows, std::int64_t columns) {
  const std::int64_t count = sum.count;
  const std::int64_t block = rows > 6 ? kTermBlock : count;
  for (std::int64_t i = 0;;) {
    sum.count = smaller(block, count - i);
    std::int64_t row = 0;
    for (; row + 6 <= rows; row += 6) sum_rows_of<6>(sum, row, columns);
    for (; row + 2 <= rows; row += 2) sum_rows_of<2>(sum, row, columns);
    if (row < rows) sum_rows_of<1>(sum, row, columns);
    i += sum.count;
    if (i >= count) return;
    sum.terms += block * sum.term_stride;
    sum.x += block * sum.x_step;
    sum.from = sum.out;  // and go on
    sum.from_stride = sum.out_stride;
    sum.factor = 1;
    sum.factors = nullptr;
  }
}
