#include <gtest/gtest.h>

#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "dendrite/error.h"
#include "support/paths.h"
#include "test_support.h"

namespace dendrite {
namespace {

using testing_support::FileMatrix;
using testing_support::first_difference;
using testing_support::kNan;
using testing_support::Owned;
using testing_support::Random;
using testing_support::reference_matmul;
using testing_support::relative_error;
using testing_support::rounds_activations;

class MatmulOnPath : public testing::TestWithParam<std::string> {};

struct Types {
  Numerics compute;
  DType stored;
};
const std::vector<Types> kTypes = {
    {Numerics::kF32, DType::kF32}, {Numerics::kF32, DType::kBF16},  {Numerics::kF32, DType::kF16},
    {Numerics::kF16, DType::kF16}, {Numerics::kBF16, DType::kBF16},
};

double tolerance(const Types& types, const std::string& path) {
  return types.compute == Numerics::kBF16 && rounds_activations(path) ? 1e-2 : 1e-5;
}

TEST_P(MatmulOnPath, EqualsDoublePrecisionForOddShapes) {
  struct Shape {
    std::int64_t rows, n, k;
  };
  for (const Types& types : kTypes) {
    const auto backend = test::make_backend(types.compute, 2, GetParam());
    for (const Shape s :
         {Shape{1, 1, 1}, Shape{1, 64, 64}, Shape{2, 65, 63}, Shape{3, 100, 129}, Shape{4, 37, 576},
          Shape{5, 192, 80}, Shape{6, 128, 24}, Shape{7, 130, 255}, Shape{17, 70, 131},
          Shape{97, 66, 300}, Shape{200, 80, 1031}}) {
      Random random(static_cast<std::uint32_t>(s.rows * 131 + s.n * 7 + s.k));
      const FileMatrix w(s.n, s.k, types.stored, random.normal(s.n * s.k));
      const auto x = random.normal(s.rows * s.k);
      const auto bias = random.normal(s.n);
      const auto before = random.normal(s.rows * s.n);
      const auto weight = backend->pack({&w.host, 1});
      Owned in(*backend, s.rows, s.k, s.k + 3);
      in.set(*backend, x);
      Owned bias_buffer(*backend, 1, s.n);
      bias_buffer.set(*backend, bias);
      Owned out(*backend, s.rows, s.n, s.n + 5);
      const auto expected = reference_matmul(x, w.values, s.rows, s.n, s.k);

      backend->matmul(out.tensor, in.tensor, *weight, nullptr, Backend::Store::kOverwrite);
      EXPECT_LE(relative_error(out.get(*backend), expected), tolerance(types, GetParam()))
          << s.rows << " x " << s.n << " x " << s.k << " " << name_of(types.compute) << " "
          << name_of(types.stored);

      out.set(*backend, before);
      backend->matmul(out.tensor, in.tensor, *weight, bias_buffer.tensor.data,
                      Backend::Store::kAdd);
      auto sum = expected;
      for (std::size_t i = 0; i < sum.size(); ++i) {
        sum[i] += static_cast<double>(before[i]) +
                  static_cast<double>(bias[i % static_cast<std::size_t>(s.n)]);
      }
      EXPECT_LE(relative_error(out.get(*backend), sum), tolerance(types, GetParam()))
          << "add and bias: " << s.rows << " x " << s.n << " x " << s.k;
    }
  }
}

TEST_P(MatmulOnPath, RowsHaveTheSameBitsForAnyNumberOfRowsAndThreads) {
  constexpr std::int64_t kRows = 130;
  constexpr std::int64_t n = 200;
  for (const std::int64_t k : {83, 700}) {
    for (const Types& types : kTypes) {
      Random random(5);
      const FileMatrix w(n, k, types.stored, random.normal(n * k));
      const auto x = random.normal(kRows * k);
      const auto bias = random.normal(n);
      std::vector<float> expected;
      for (const int threads : {1, 2, 3}) {
        const auto backend = test::make_backend(types.compute, threads, GetParam());
        const auto weight = backend->pack({&w.host, 1});
        Owned bias_buffer(*backend, 1, n);
        bias_buffer.set(*backend, bias);
        Owned in(*backend, kRows, k);
        in.set(*backend, x);
        if (expected.empty()) {  // row by row
          for (std::int64_t r = 0; r < kRows; ++r) {
            Owned out(*backend, 1, n);
            const Tensor row{in.tensor.data + r * k, 1, k, k};
            backend->matmul(out.tensor, row, *weight, bias_buffer.tensor.data,
                            Backend::Store::kOverwrite);
            const auto values = out.get(*backend);
            expected.insert(expected.end(), values.begin(), values.end());
          }
        }
        for (std::int64_t rows = threads == 1 ? 1 : 121; rows <= kRows; ++rows) {
          Owned out(*backend, rows, n);
          backend->matmul(out.tensor, in.tensor.first_rows(rows), *weight, bias_buffer.tensor.data,
                          Backend::Store::kOverwrite);
          const auto got = out.get(*backend);
          ASSERT_EQ(first_difference(got, std::span(expected).first(got.size())), -1)
              << rows << " rows, " << threads << " threads, k " << k << ", "
              << name_of(types.compute) << " " << name_of(types.stored);
        }
      }
    }
  }
}

TEST_P(MatmulOnPath, RowsHaveTheSameBitsWhereKernelsChange) {
  // On a GPU the number of rows and the shape decide between kernels: few outputs, many, a long k.
  struct Shape {
    std::int64_t n, k;
  };
  constexpr std::int64_t kRows = 200;
  std::vector<Shape> shapes = {{192, 256}, {72, 1088}};
  if (test::on_cuda()) shapes.insert(shapes.end(), {{6200, 192}, {40000, 128}, {72, 8192}});
  for (const auto [n, k] : shapes) {
    const auto backend = test::make_backend(Numerics::kBF16, 2, GetParam());
    Random random(12);
    const FileMatrix w(n, k, DType::kBF16, random.normal(n * k));
    const auto weight = backend->pack({&w.host, 1});
    const auto x = random.normal(kRows * k);
    const auto before = random.normal(kRows * n);
    Owned in(*backend, kRows, k);
    in.set(*backend, x);
    Owned bias(*backend, 1, n);
    bias.set(*backend, random.normal(n));
    const auto rows_of = [&](std::int64_t first, std::int64_t rows) {
      Owned out(*backend, rows, n);
      out.set(*backend, std::span(before).subspan(static_cast<std::size_t>(first * n)));
      const Tensor some{in.tensor.data + first * k, rows, k, k};
      backend->matmul(out.tensor, some, *weight, bias.tensor.data, Backend::Store::kAdd);
      return out.get(*backend);
    };
    const auto expected = rows_of(0, kRows);
    for (const std::int64_t rows : {1,  2,  7,  8,  9,  16, 17,  31,  32,  33,  40,  41,  63,
                                    64, 65, 72, 73, 81, 97, 112, 113, 127, 128, 129, 136, 199}) {
      for (const std::int64_t first : {std::int64_t{0}, kRows - rows}) {
        const auto got = rows_of(first, rows);
        ASSERT_EQ(first_difference(got, std::span(expected).subspan(
                                            static_cast<std::size_t>(first * n), got.size())),
                  -1)
            << rows << " rows from " << first << ", " << n << " x " << k;
      }
    }
  }
}

TEST_P(MatmulOnPath, ALargeOneIsTheSameOnAnyNumberOfThreads) {
  // Large enough that the work is really divided.
  const std::int64_t rows = 150;
  const std::int64_t n = 704;
  const std::int64_t k = 1500;
  Random random(6);
  const FileMatrix w(n, k, DType::kBF16, random.normal(n * k));
  const auto x = random.normal(rows * k);
  std::vector<float> expected;
  for (const int threads : {1, 2, 3}) {
    const auto backend = test::make_backend(Numerics::kBF16, threads, GetParam());
    const auto weight = backend->pack({&w.host, 1});
    Owned in(*backend, rows, k);
    in.set(*backend, x);
    Owned out(*backend, rows, n);
    backend->matmul(out.tensor, in.tensor, *weight, nullptr, Backend::Store::kOverwrite);
    const auto got = out.get(*backend);
    if (expected.empty()) expected = got;
    EXPECT_EQ(first_difference(got, expected), -1) << threads << " threads";
  }
}

TEST_P(MatmulOnPath, EmbedReadsTheRowsBackExactly) {
  for (const Types& types : kTypes) {
    const auto backend = test::make_backend(types.compute, 2, GetParam());
    Random random(7);
    const std::int64_t n = 131;
    for (const std::int64_t k : {1, 33, 64, 257}) {
      const FileMatrix w(n, k, types.stored, random.normal(n * k));
      const auto weight = backend->pack({&w.host, 1});
      const std::vector<std::int32_t> tokens = {0, 130, 64, 63, 5, 5};
      Owned out(*backend, static_cast<std::int64_t>(tokens.size()), k, k + 1);
      backend->embed(out.tensor, tokens, *weight);
      std::vector<float> expected;
      for (const std::int32_t token : tokens) {
        expected.insert(expected.end(), w.values.begin() + token * k,
                        w.values.begin() + (token + 1) * k);
      }
      EXPECT_EQ(first_difference(out.get(*backend), expected), -1)
          << name_of(types.compute) << " " << name_of(types.stored) << " k " << k;
    }
  }
}

TEST_P(MatmulOnPath, StackedFormatsGiveTheBitsThatEachGivesAlone) {
  const auto backend = test::make_backend(Numerics::kF32, 2, GetParam());
  Random random(31);
  constexpr std::int64_t k = 83;
  const FileMatrix a(70, k, DType::kBF16, random.normal(70 * k));
  const FileMatrix b(3, k, DType::kF32, random.normal(3 * k));
  const FileMatrix c(129, k, DType::kF16, random.normal(129 * k));
  const std::vector<StoredMatrix> parts = {a.host, b.host, c.host};
  const auto stacked = backend->pack(parts);
  constexpr std::int64_t n = 70 + 3 + 129;
  ASSERT_EQ(stacked->rows(), n);
  Owned bias(*backend, 1, n);
  bias.set(*backend, random.normal(n));
  for (const std::int64_t rows : {1, 5, 40, 130}) {
    Owned x(*backend, rows, k);
    x.set(*backend, random.normal(rows * k));
    const auto before = random.normal(rows * n);
    Owned together(*backend, rows, n, n + 2);
    Owned apart(*backend, rows, n, n + 2);
    together.set(*backend, before);
    apart.set(*backend, before);
    backend->matmul(together.tensor, x.tensor, *stacked, bias.tensor.data, Backend::Store::kAdd);
    std::int64_t first = 0;
    for (const StoredMatrix& part : parts) {
      const auto weight = backend->pack({&part, 1});
      backend->matmul(apart.tensor.columns(first, part.rows), x.tensor, *weight,
                      bias.tensor.data + first, Backend::Store::kAdd);
      first += part.rows;
    }
    EXPECT_EQ(first_difference(together.get(*backend), apart.get(*backend)), -1) << rows;
  }
}

// As many rows as each kernel takes, and those that passes are padded to. Small enough for a
// sanitizer: scripts/gpu_check.sh.
TEST(Sanitized, ProductsOfAnyNumberOfRows) {
  constexpr std::int64_t n = 1152;
  constexpr std::int64_t k = 576;
  const auto paths =
      test::on_cuda() ? std::vector<std::string>{"cuda", "cuda_fast"} : test::kernel_paths();
  for (const std::string& path : paths) {
    const auto backend = test::make_backend(Numerics::kBF16, 2, path);
    Random random(23);
    const FileMatrix w(n, k, DType::kBF16, random.normal(n * k));
    const auto weight = backend->pack({&w.host, 1});
    auto x = random.normal(128 * k);
    for (float& value : x) value = to_f32(to_bf16(value));
    Owned in(*backend, 128, k);
    in.set(*backend, x);
    const auto expected = reference_matmul(x, w.values, 128, n, k);
    for (const std::int64_t rows : {1, 8, 17, 33, 64, 65, 100, 128}) {
      Owned out(*backend, rows, n);
      backend->matmul(out.tensor, in.tensor.first_rows(rows), *weight, nullptr,
                      Backend::Store::kOverwrite);
      EXPECT_LE(relative_error(out.get(*backend),
                               std::span(expected).first(static_cast<std::size_t>(rows * n))),
                1e-4)
          << path << " " << rows << " rows";
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Paths, MatmulOnPath, testing::ValuesIn(test::kernel_paths()),
                         [](const auto& info) { return info.param; });

TEST(Pack, StacksPartsAlongRows) {
  const auto backend = make_cpu_backend(Numerics::kF32, 2);
  Random random(8);
  const std::int64_t k = 40;
  const FileMatrix a(70, k, DType::kBF16, random.normal(70 * k));
  const FileMatrix b(3, k, DType::kF32, random.normal(3 * k));
  const FileMatrix c(10, k, DType::kF16, random.normal(10 * k));
  const std::vector<StoredMatrix> parts = {a.host, b.host, c.host};
  const auto weight = backend->pack(parts);
  EXPECT_EQ(weight->rows(), 83);
  // Each is kept as it is stored: two panels of bf16, one of f32, one of f16.
  EXPECT_EQ(weight->size_bytes(), k * (128 * 2 + 64 * 4 + 64 * 2));
  Owned out(*backend, 83, k);
  std::vector<std::int32_t> tokens(83);
  for (std::int32_t i = 0; i < 83; ++i) tokens[static_cast<std::size_t>(i)] = i;
  backend->embed(out.tensor, tokens, *weight);
  auto expected = a.values;
  expected.insert(expected.end(), b.values.begin(), b.values.end());
  expected.insert(expected.end(), c.values.begin(), c.values.end());
  EXPECT_EQ(first_difference(out.get(*backend), expected), -1);
}

TEST(Pack, RoundsToBF16ToNearestEven) {
  const auto backend = make_cpu_backend(Numerics::kBF16, 1);
  Random random(9);
  const std::int64_t n = 70;
  const std::int64_t k = 33;
  const FileMatrix w(n, k, DType::kF32, random.normal(n * k));
  const auto weight = backend->pack({&w.host, 1});
  Owned out(*backend, 1, k);
  const std::vector<std::int32_t> token = {69};
  backend->embed(out.tensor, token, *weight);
  const auto got = out.get(*backend);
  for (std::int64_t i = 0; i < k; ++i) {
    EXPECT_EQ(got[static_cast<std::size_t>(i)],
              to_f32(to_bf16(w.values[static_cast<std::size_t>(69 * k + i)])));
  }
}

std::string pack_error(Backend& backend, const StoredMatrix& host) {
  try {
    backend.pack({&host, 1});
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

TEST(Pack, NamesTheFirstValueThatIsNotFinite) {
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    // The last column goes another way than whole tiles do.
    for (const std::int64_t element : {std::int64_t{17}, std::int64_t{80 * 70 - 1}}) {
      FileMatrix w(80, 70, dtype, std::vector<float>(80 * 70, 1.0f));
      if (dtype == DType::kF32) {
        std::memcpy(&w.bytes[static_cast<std::size_t>(element * 4)], &kNan, 4);
      } else {
        const std::uint16_t bits = dtype == DType::kBF16 ? 0x7fc0 : 0x7e00;
        std::memcpy(&w.bytes[static_cast<std::size_t>(element * 2)], &bits, 2);
      }
      const auto backend = make_cpu_backend(Numerics::kF32, 2);
      EXPECT_EQ(pack_error(*backend, w.host),
                "test.safetensors: tensor \"test.weight\" holds NaN at element " +
                    std::to_string(element) + "; expected finite values");
    }
  }
  FileMatrix w(1, 3, DType::kF32,
               std::vector<float>{1, -std::numeric_limits<float>::infinity(), 2});
  EXPECT_EQ(
      pack_error(*make_cpu_backend(Numerics::kBF16, 1), w.host),
      "test.safetensors: tensor \"test.weight\" holds -infinity at element 1; expected finite "
      "values");
}

TEST(Pack, RefusesWhatTheDeviceTypeCannotHold) {
  FileMatrix w(1, 2, DType::kF32, std::vector<float>{1.0f, 70000.0f});
  EXPECT_EQ(pack_error(*make_cpu_backend(Numerics::kF16, 1), w.host),
            "test.safetensors: tensor \"test.weight\" holds 70000.000000 at element 1, which is "
            "beyond the range of f16; expected values up to 65504");
  FileMatrix big(1, 2, DType::kF32, std::vector<float>{1.0f, std::numeric_limits<float>::max()});
  EXPECT_NE(pack_error(*make_cpu_backend(Numerics::kBF16, 1), big.host).find("beyond the range"),
            std::string::npos);
}

TEST(Pack, ConvertsEveryHalfExactly) {
  std::vector<float> values;
  std::vector<std::uint16_t> bits;
  for (std::uint32_t h = 0; h < 0x10000; ++h) {
    if ((h & 0x7c00u) == 0x7c00u) continue;
    bits.push_back(static_cast<std::uint16_t>(h));
    values.push_back(to_f32(static_cast<F16>(h)));
  }
  const auto count = static_cast<std::int64_t>(values.size());
  const StoredMatrix as_f32{.format = &f32_format(),
                            .data = reinterpret_cast<const std::byte*>(values.data()),
                            .rows = 1,
                            .cols = count,
                            .stride = count * 4,
                            .name = "w",
                            .file = "f"};
  const auto backend = make_cpu_backend(Numerics::kF16, 1);
  const auto weight = backend->pack({&as_f32, 1});
  Owned out(*backend, 1, count);
  const std::vector<std::int32_t> token = {0};
  backend->embed(out.tensor, token, *weight);
  EXPECT_EQ(first_difference(out.get(*backend), values), -1);
}

TEST(RandomWeight, IsRepeatableAndHasTheVarianceAsked) {
  const auto one = make_cpu_backend(Numerics::kF32, 1);
  const auto two = make_cpu_backend(Numerics::kF32, 2);
  for (const DType dtype : {DType::kF32, DType::kBF16, DType::kF16}) {
    const std::int64_t k = 501;
    const auto a = one->random_weight(130, k, dtype, 3);
    const auto b = two->random_weight(130, k, dtype, 3);
    std::vector<std::int32_t> tokens(130);
    for (std::int32_t i = 0; i < 130; ++i) tokens[static_cast<std::size_t>(i)] = i;
    Owned out_a(*one, 130, k);
    Owned out_b(*two, 130, k);
    one->embed(out_a.tensor, tokens, *a);
    two->embed(out_b.tensor, tokens, *b);
    const auto values = out_a.get(*one);
    EXPECT_EQ(first_difference(values, out_b.get(*two)), -1);
    double sum = 0;
    double square = 0;
    for (const float value : values) {
      sum += static_cast<double>(value);
      square += static_cast<double>(value) * static_cast<double>(value);
    }
    EXPECT_NEAR(sum / static_cast<double>(values.size()), 0.0, 1e-3);
    EXPECT_NEAR(square / static_cast<double>(values.size()) * static_cast<double>(k), 1.0, 0.05);
  }
}

}  // namespace
}  // namespace dendrite
