#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "support/paths.h"
#include "support/sublayers.h"
#include "test_support.h"

// The parts of a layer against double precision, on rows that are one causal sequence.

namespace dendrite {
namespace {

using testing_support::FileMatrix;
using testing_support::first_difference;
using testing_support::Owned;
using testing_support::Random;
using testing_support::reference_matmul;
using testing_support::relative_error;

constexpr std::int64_t kRows = 20;
constexpr std::int64_t kPageTokens = 16;
constexpr float kEps = 1e-5f;

struct Sizes {
  std::int64_t dim, heads, kv_heads, head_dim, ffn;
  bool extras;  // biases and per-head norms
};
std::ostream& operator<<(std::ostream& out, const Sizes& s) {
  return out << "dim " << s.dim << " heads " << s.heads << "/" << s.kv_heads << " x " << s.head_dim
             << " ffn " << s.ffn << (s.extras ? " with biases" : "");
}
/// Whole tiles; neither 16-byte rows nor tiles; on a GPU also rows so wide that kernels treat them
/// otherwise.
std::vector<Sizes> all_sizes() {
  std::vector<Sizes> sizes = {{64, 4, 2, 16, 96, false},
                              {64, 4, 2, 16, 96, true},
                              {96, 2, 2, 64, 544, true},
                              {48, 3, 1, 24, 72, true},
                              {50, 2, 1, 10, 30, true}};
  if (test::on_cuda()) sizes.push_back({2112, 4, 2, 32, 4160, true});
  return sizes;
}

std::vector<double> widened(std::span<const float> values) {
  return {values.begin(), values.end()};
}
std::vector<float> narrowed(std::span<const double> values) {
  return {values.begin(), values.end()};
}

/// One layer's weights with their exact values, and rows to put through it.
struct Layer {
  Sizes s;
  Random random{11};
  std::int64_t width;  // of qkv
  FileMatrix qkv, out, gate_up, down;
  std::vector<float> hidden, norm, qkv_bias, out_bias, gate_up_bias, down_bias, q_norm, k_norm,
      cos_sin;

  FileMatrix matrix(std::int64_t rows, std::int64_t cols, DType dtype) {
    return {rows, cols, dtype,
            random.normal(rows * cols, 1.0f / std::sqrt(static_cast<float>(cols)))};
  }
  Layer(const Sizes& sizes, DType dtype)
      : s(sizes),
        width((s.heads + 2 * s.kv_heads) * s.head_dim),
        qkv(matrix(width, s.dim, dtype)),
        out(matrix(s.dim, s.heads * s.head_dim, dtype)),
        gate_up(matrix(2 * s.ffn, s.dim, dtype)),
        down(matrix(s.dim, s.ffn, dtype)) {
    hidden = random.normal(kRows * s.dim);
    norm = random.normal(s.dim);
    qkv_bias = random.normal(width);
    out_bias = random.normal(s.dim);
    gate_up_bias = random.normal(2 * s.ffn);
    down_bias = random.normal(s.dim);
    q_norm = random.normal(s.head_dim);
    k_norm = random.normal(s.head_dim);
    for (std::int64_t r = 0; r < kRows; ++r) {
      const auto angles = random.normal(s.head_dim / 2, 3.0f);
      for (const float angle : angles) cos_sin.push_back(std::cos(angle));
      for (const float angle : angles) cos_sin.push_back(std::sin(angle));
    }
  }

  static std::vector<double> normed(std::span<const double> x, std::span<const float> weight) {
    const std::size_t dim = weight.size();
    std::vector<double> y(x.begin(), x.end());
    for (std::size_t begin = 0; begin < x.size(); begin += dim) {
      double square = 0;
      for (std::size_t i = 0; i < dim; ++i) square += x[begin + i] * x[begin + i];
      const double factor = 1.0 / std::sqrt(square / static_cast<double>(dim) + 1e-5);
      for (std::size_t i = 0; i < dim; ++i) y[begin + i] *= factor * static_cast<double>(weight[i]);
    }
    return y;
  }
  std::vector<double> product(std::span<const double> x, const FileMatrix& w,
                              const std::vector<float>& bias) const {
    auto y = reference_matmul(narrowed(x), w.values, kRows, w.host.rows, w.host.cols);
    for (std::size_t i = 0; s.extras && i < y.size(); ++i) {
      y[i] += static_cast<double>(bias[i % bias.size()]);
    }
    return y;
  }

  std::vector<double> reference_attention_sublayer() const;
  std::vector<double> reference_mlp_sublayer() const {
    const auto gates = product(normed(widened(hidden), norm), gate_up, gate_up_bias);
    std::vector<double> act;
    for (std::int64_t r = 0; r < kRows; ++r) {
      for (std::int64_t i = 0; i < s.ffn; ++i) {
        const double gate = gates[static_cast<std::size_t>(r * 2 * s.ffn + i)];
        const double up = gates[static_cast<std::size_t>(r * 2 * s.ffn + s.ffn + i)];
        act.push_back(gate / (1 + std::exp(-gate)) * up);
      }
    }
    auto y = product(act, down, down_bias);
    for (std::size_t i = 0; i < y.size(); ++i) y[i] += static_cast<double>(hidden[i]);
    return y;
  }
};

std::vector<double> Layer::reference_attention_sublayer() const {
  auto x = product(normed(widened(hidden), norm), qkv, qkv_bias);
  const std::int64_t half = s.head_dim / 2;
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t h = 0; h < s.heads + s.kv_heads; ++h) {
      double* head = x.data() + r * width + h * s.head_dim;
      if (s.extras) {
        const auto y = normed(std::span(head, static_cast<std::size_t>(s.head_dim)),
                              h < s.heads ? q_norm : k_norm);
        std::copy(y.begin(), y.end(), head);
      }
      for (std::int64_t i = 0; i < half; ++i) {
        const double c = static_cast<double>(cos_sin[static_cast<std::size_t>(r * s.head_dim + i)]);
        const double n =
            static_cast<double>(cos_sin[static_cast<std::size_t>(r * s.head_dim + half + i)]);
        const double a = head[i];
        const double b = head[i + half];
        head[i] = a * c - b * n;
        head[i + half] = b * c + a * n;
      }
    }
  }
  std::vector<double> attended;
  for (std::int64_t r = 0; r < kRows; ++r) {
    for (std::int64_t h = 0; h < s.heads; ++h) {
      const std::int64_t kv_head = h / (s.heads / s.kv_heads);
      const double* q = x.data() + r * width + h * s.head_dim;
      std::vector<double> sum(static_cast<std::size_t>(s.head_dim));
      double total = 0;
      for (std::int64_t j = 0; j <= r; ++j) {
        const double* k = x.data() + j * width + (s.heads + kv_head) * s.head_dim;
        const double* v = k + s.kv_heads * s.head_dim;
        double score = 0;
        for (std::int64_t i = 0; i < s.head_dim; ++i) score += q[i] * k[i];
        const double weight = std::exp(score / std::sqrt(static_cast<double>(s.head_dim)));
        total += weight;
        for (std::int64_t i = 0; i < s.head_dim; ++i) {
          sum[static_cast<std::size_t>(i)] += weight * v[i];
        }
      }
      for (const double value : sum) attended.push_back(value / total);
    }
  }
  auto y = product(attended, out, out_bias);
  for (std::size_t i = 0; i < y.size(); ++i) y[i] += static_cast<double>(hidden[i]);
  return y;
}

/// A layer on a device.
class OnDevice {
 public:
  OnDevice(Backend& backend, const Layer& layer)
      : b_(backend),
        l_(layer),
        qkv_(b_.pack({&l_.qkv.host, 1})),
        out_(b_.pack({&l_.out.host, 1})),
        gate_up_(b_.pack({&l_.gate_up.host, 1})),
        down_(b_.pack({&l_.down.host, 1})),
        store_(
            b_.make_kv_store({1, l_.s.kv_heads, l_.s.head_dim, 2, kPageTokens, b_.numerics().kv})) {
    plan_.pages = {0, 1};
    plan_.items = {{0, kRows, 0, 0, 0}};
    plan_.super_blocks = {{0, 1}};
  }

  /// Rows [begin, end) of the sequence; those before were run already.
  std::vector<float> attention(std::int64_t begin, std::int64_t end) {
    const Sizes& s = l_.s;
    const std::int64_t rows = end - begin;
    Owned hidden = rows_of(l_.hidden, begin, rows);
    Owned normed(b_, rows, s.dim);
    Owned qkv(b_, rows, l_.width);
    Owned attended(b_, rows, s.heads * s.head_dim);
    const Owned angles = rows_of(l_.cos_sin, begin, rows);
    std::vector<std::int64_t> slots;
    plan_.positions.clear();
    for (std::int64_t r = begin; r < end; ++r) {
      slots.push_back(r);
      plan_.positions.push_back(r);
    }
    plan_.items[0].row_end = static_cast<std::int32_t>(rows);
    test::AttentionSublayer sublayer;
    sublayer.hidden = hidden.tensor;
    sublayer.norm = vector_of(l_.norm);
    sublayer.norm_eps = kEps;
    sublayer.qkv = qkv_.get();
    sublayer.out = out_.get();
    sublayer.qkv_bias = s.extras ? vector_of(l_.qkv_bias) : nullptr;
    sublayer.out_bias = s.extras ? vector_of(l_.out_bias) : nullptr;
    sublayer.normed = normed.tensor;
    sublayer.rope.qkv = qkv.tensor;
    sublayer.rope.heads = s.heads;
    sublayer.rope.kv_heads = s.kv_heads;
    sublayer.rope.head_dim = s.head_dim;
    sublayer.rope.rotary_dim = s.head_dim;
    sublayer.rope.cos_sin = angles.tensor.data;
    sublayer.rope.q_norm = s.extras ? vector_of(l_.q_norm) : nullptr;
    sublayer.rope.k_norm = s.extras ? vector_of(l_.k_norm) : nullptr;
    sublayer.rope.norm_eps = kEps;
    sublayer.rope.slots = slots;
    sublayer.rope.kv = store_.get();
    sublayer.attention.out = attended.tensor;
    sublayer.attention.q = qkv.tensor.columns(0, s.heads * s.head_dim);
    sublayer.attention.heads = s.heads;
    sublayer.attention.scale = 1.0f / std::sqrt(static_cast<float>(s.head_dim));
    sublayer.attention.kv = store_.get();
    sublayer.attention.plan = &plan_;
    sublayer.run(b_);
    return hidden.get(b_);
  }

  std::vector<float> mlp(std::int64_t begin, std::int64_t end) {
    const Sizes& s = l_.s;
    const std::int64_t rows = end - begin;
    Owned hidden = rows_of(l_.hidden, begin, rows);
    Owned normed(b_, rows, s.dim);
    Owned gate_up(b_, rows, 2 * s.ffn);
    Owned act(b_, rows, s.ffn);
    test::MlpSublayer sublayer;
    sublayer.hidden = hidden.tensor;
    sublayer.norm = vector_of(l_.norm);
    sublayer.norm_eps = kEps;
    sublayer.gate_up = gate_up_.get();
    sublayer.down = down_.get();
    sublayer.gate_up_bias = s.extras ? vector_of(l_.gate_up_bias) : nullptr;
    sublayer.down_bias = s.extras ? vector_of(l_.down_bias) : nullptr;
    sublayer.normed = normed.tensor;
    sublayer.gate_up_out = gate_up.tensor;
    sublayer.act = act.tensor;
    sublayer.run(b_);
    return hidden.get(b_);
  }

  std::vector<float> norm_matmul(const std::vector<std::int32_t>& rows) {
    const auto count = static_cast<std::int64_t>(rows.size());
    Owned hidden = rows_of(l_.hidden, 0, kRows);
    Owned gathered(b_, count, l_.s.dim);
    Owned out(b_, count, 2 * l_.s.ffn, 2 * l_.s.ffn + 1);
    Product args;
    args.weight = gate_up_.get();
    args.in = gate_up_->input(gathered.tensor);
    args.x = hidden.tensor;
    args.norm = vector_of(l_.norm);
    args.norm_eps = kEps;
    args.gather = rows;
    args.out = out.tensor;
    b_.product(args);
    return out.get(b_);
  }

 private:
  Owned rows_of(const std::vector<float>& values, std::int64_t begin, std::int64_t rows) {
    const auto cols = static_cast<std::int64_t>(values.size()) / kRows;
    Owned owned(b_, rows, cols);
    owned.set(b_, std::span(values).subspan(static_cast<std::size_t>(begin * cols)));
    return owned;
  }
  const float* vector_of(const std::vector<float>& values) {
    vectors_.emplace_back(b_, 1, static_cast<std::int64_t>(values.size()));
    vectors_.back().set(b_, values);
    return vectors_.back().tensor.data;
  }

  Backend& b_;
  const Layer& l_;
  std::unique_ptr<Weight> qkv_, out_, gate_up_, down_;
  std::unique_ptr<KvStore> store_;
  AttentionPlan plan_;
  std::vector<Owned> vectors_;
};

std::vector<std::string> paths() {
  std::vector<std::string> paths = test::kernel_paths();
  if (test::on_cuda()) paths.emplace_back("cuda_fast");
  return paths;
}
double tolerance(Numerics type) {
  return type == Numerics::kBF16 ? 3e-2 : 5e-5;
}
std::span<const float> row(std::span<const float> values, std::int64_t count, std::int64_t index) {
  const std::size_t size = values.size() / static_cast<std::size_t>(count);
  return values.subspan(static_cast<std::size_t>(index) * size, size);
}

class SublayersOnPath : public testing::TestWithParam<std::string> {};

TEST_P(SublayersOnPath, EqualDoublePrecision) {
  for (const Numerics type : {Numerics::kF32, Numerics::kBF16}) {
    const auto backend = test::make_backend(type, 2, GetParam());
    for (const Sizes& sizes : all_sizes()) {
      const Layer layer(sizes, type == Numerics::kBF16 ? DType::kBF16 : DType::kF32);
      const auto attention = layer.reference_attention_sublayer();
      const auto mlp = layer.reference_mlp_sublayer();
      OnDevice device(*backend, layer);
      for (const std::int64_t rows :
           {std::int64_t{20}, std::int64_t{12}, std::int64_t{5}, std::int64_t{1}}) {
        const auto count = static_cast<std::size_t>(rows * sizes.dim);
        EXPECT_LE(relative_error(device.attention(0, rows), std::span(attention).first(count)),
                  tolerance(type))
            << "attention " << name_of(type) << " " << rows << " rows, " << sizes;
        EXPECT_LE(relative_error(device.mlp(0, rows), std::span(mlp).first(count)), tolerance(type))
            << "mlp " << name_of(type) << " " << rows << " rows, " << sizes;
      }
    }
  }
}

TEST_P(SublayersOnPath, NormMatmulEqualsDoublePrecision) {
  for (const Numerics type : {Numerics::kF32, Numerics::kBF16}) {
    const auto backend = test::make_backend(type, 2, GetParam());
    for (const Sizes& sizes : all_sizes()) {
      const Layer layer(sizes, type == Numerics::kBF16 ? DType::kBF16 : DType::kF32);
      OnDevice device(*backend, layer);
      const auto all = reference_matmul(narrowed(Layer::normed(widened(layer.hidden), layer.norm)),
                                        layer.gate_up.values, kRows, 2 * sizes.ffn, sizes.dim);
      for (const std::vector<std::int32_t>& rows :
           {std::vector<std::int32_t>{17},
            {3, 19},
            {0, 2, 5, 6, 7, 9, 11, 13, 14, 18},
            {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18}}) {
        std::vector<double> expected;
        for (const std::int32_t r : rows) {
          const auto begin = all.begin() + r * 2 * sizes.ffn;
          expected.insert(expected.end(), begin, begin + 2 * sizes.ffn);
        }
        EXPECT_LE(relative_error(device.norm_matmul(rows), expected), tolerance(type))
            << name_of(type) << " " << rows.size() << " rows, " << sizes;
      }
    }
  }
}

TEST_P(SublayersOnPath, RowsHaveTheSameBitsInAnyCompany) {
  // The fast mode promises it only where all numbers of rows take the same kernel.
  const bool fast = GetParam() == "cuda_fast";
  const std::int64_t most = fast ? 8 : kRows;
  for (const Numerics type : {Numerics::kF32, Numerics::kBF16}) {
    const auto backend = test::make_backend(type, 2, GetParam());
    for (const Sizes& sizes : all_sizes()) {
      if (fast && sizes.dim % 32 != 0) continue;
      const Layer layer(sizes, type == Numerics::kBF16 ? DType::kBF16 : DType::kF32);
      OnDevice device(*backend, layer);
      const auto attention = device.attention(0, most);
      const auto mlp = device.mlp(0, most);
      for (std::int64_t rows = 1; rows < most; rows += 3) {
        const std::int64_t begin = most - rows;
        const auto a = device.attention(begin, most);
        const auto m = device.mlp(begin, most);
        for (std::int64_t r = 0; r < rows; ++r) {
          ASSERT_EQ(first_difference(row(a, rows, r), row(attention, most, begin + r)), -1)
              << "attention " << name_of(type) << " " << rows << " rows, " << sizes;
          ASSERT_EQ(first_difference(row(m, rows, r), row(mlp, most, begin + r)), -1)
              << "mlp " << name_of(type) << " " << rows << " rows, " << sizes;
        }
      }
    }
  }
}

TEST_P(SublayersOnPath, MlpRowsHaveTheSameBitsWhereKernelsChange) {
  if (GetParam() == "cuda_fast") GTEST_SKIP() << "not promised";
  constexpr std::int64_t kMost = 140;
  constexpr std::int64_t kDim = 256;
  constexpr std::int64_t kFfn = 320;
  const auto backend = test::make_backend(Numerics::kBF16, 2, GetParam());
  Random random(13);
  const FileMatrix ups(2 * kFfn, kDim, DType::kBF16, random.normal(2 * kFfn * kDim, 0.1f));
  const FileMatrix downs(kDim, kFfn, DType::kBF16, random.normal(kDim * kFfn, 0.1f));
  const auto gate_up = backend->pack({&ups.host, 1});
  const auto down = backend->pack({&downs.host, 1});
  const auto x = random.normal(kMost * kDim);
  Owned norm(*backend, 1, kDim);
  norm.set(*backend, random.normal(kDim));
  const auto rows_of = [&](std::int64_t first, std::int64_t rows) {
    Owned hidden(*backend, rows, kDim);
    hidden.set(*backend, std::span(x).subspan(static_cast<std::size_t>(first * kDim)));
    Owned normed(*backend, rows, kDim);
    Owned gates(*backend, rows, 2 * kFfn);
    Owned act(*backend, rows, kFfn);
    test::MlpSublayer sublayer;
    sublayer.hidden = hidden.tensor;
    sublayer.norm = norm.tensor.data;
    sublayer.norm_eps = kEps;
    sublayer.gate_up = gate_up.get();
    sublayer.down = down.get();
    sublayer.normed = normed.tensor;
    sublayer.gate_up_out = gates.tensor;
    sublayer.act = act.tensor;
    sublayer.run(*backend);
    return hidden.get(*backend);
  };
  const auto expected = rows_of(0, kMost);
  for (const std::int64_t rows : {1, 8, 9, 32, 33, 64, 65, 97, 112, 113, 128, 129}) {
    const std::int64_t first = kMost - rows;
    ASSERT_EQ(first_difference(rows_of(first, rows),
                               std::span(expected).subspan(static_cast<std::size_t>(first * kDim))),
              -1)
        << rows << " rows";
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, SublayersOnPath, testing::ValuesIn(paths()),
                         [](const auto& info) { return info.param; });

}  // namespace
}  // namespace dendrite
