#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "dendrite/error.h"
#include "io/test_files.h"
#include "support/paths.h"
#include "test_support.h"

namespace dendrite {
namespace {

using testing_support::first_difference;
using testing_support::kNan;
using testing_support::Owned;
using testing_support::Random;
using testing_support::relative_error;

class RowsOnPath : public testing::TestWithParam<std::string> {};

TEST_P(RowsOnPath, RmsNormEqualsDoublePrecisionAndIgnoresCompany) {
  for (const std::int64_t dim : {1, 24, 63, 80, 256, 577, 2048}) {
    const std::int64_t rows = 37;
    Random random(static_cast<std::uint32_t>(dim));
    const auto x = random.normal(rows * dim, 3.0f);
    const auto w = random.normal(dim);
    std::vector<double> expected(x.size());
    for (std::int64_t r = 0; r < rows; ++r) {
      double square = 0;
      for (std::int64_t i = 0; i < dim; ++i) {
        const double value = static_cast<double>(x[static_cast<std::size_t>(r * dim + i)]);
        square += value * value;
      }
      const double factor = 1.0 / std::sqrt(square / static_cast<double>(dim) + 1e-5);
      for (std::int64_t i = 0; i < dim; ++i) {
        const auto at = static_cast<std::size_t>(r * dim + i);
        expected[at] = static_cast<double>(x[at]) * factor *
                       static_cast<double>(w[static_cast<std::size_t>(i)]);
      }
    }
    const auto backend = test::make_backend(Numerics::kF32, 2, GetParam());
    Owned weight(*backend, 1, dim);
    weight.set(*backend, w);
    Owned in(*backend, rows, dim, dim + 1);
    in.set(*backend, x);
    Owned out(*backend, rows, dim, dim + 7);
    backend->rms_norm(out.tensor, in.tensor, weight.tensor.data, 1e-5f);
    const auto got = out.get(*backend);
    EXPECT_LE(relative_error(got, expected), 1e-5) << dim;
    for (std::int64_t r = 0; r < rows; ++r) {
      const Tensor row{in.tensor.data + r * in.tensor.stride, 1, dim, dim};
      Owned alone(*backend, 1, dim);
      backend->rms_norm(alone.tensor, row, weight.tensor.data, 1e-5f);
      EXPECT_EQ(first_difference(alone.get(*backend),
                                 std::span(got).subspan(static_cast<std::size_t>(r * dim),
                                                        static_cast<std::size_t>(dim))),
                -1);
    }
    backend->rms_norm(in.tensor, in.tensor, weight.tensor.data, 1e-5f);  // in place
    EXPECT_EQ(first_difference(in.get(*backend), got), -1) << dim;
  }
}

TEST_P(RowsOnPath, SiluMulEqualsDoublePrecisionAlsoFarOut) {
  for (const std::int64_t ffn : {1, 30, 768, 1537}) {
    const std::int64_t rows = 9;
    Random random(static_cast<std::uint32_t>(ffn));
    auto x = random.normal(rows * 2 * ffn, 4.0f);
    x[0] = 300.0f;
    x[static_cast<std::size_t>(2 * ffn)] = -300.0f;
    x[static_cast<std::size_t>(4 * ffn)] = 0.0f;
    std::vector<double> expected;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t i = 0; i < ffn; ++i) {
        const double gate = static_cast<double>(x[static_cast<std::size_t>(r * 2 * ffn + i)]);
        const double up = static_cast<double>(x[static_cast<std::size_t>(r * 2 * ffn + ffn + i)]);
        expected.push_back(gate / (1.0 + std::exp(-gate)) * up);
      }
    }
    const auto backend = test::make_backend(Numerics::kF32, 2, GetParam());
    Owned in(*backend, rows, 2 * ffn);
    in.set(*backend, x);
    Owned out(*backend, rows, ffn, ffn + 2);
    backend->silu_mul(out.tensor, in.tensor);
    EXPECT_LE(relative_error(out.get(*backend), expected), 1e-5) << ffn;
  }
}

TEST_P(RowsOnPath, ActivationsEqualDoublePrecisionAlsoFarOut) {
  using Kind = Activation::Kind;
  for (const Activation activation :
       {Activation{Kind::kSilu}, Activation{Kind::kGelu}, Activation{Kind::kClamped, 2, 1.702F}}) {
    for (const std::int64_t ffn : {1, 30, 769}) {
      const std::int64_t rows = 9;
      Random random(static_cast<std::uint32_t>(ffn));
      auto x = random.normal(rows * 2 * ffn, 3.0f);
      x[0] = 300.0f;
      x[static_cast<std::size_t>(2 * ffn)] = -300.0f;
      x[static_cast<std::size_t>(4 * ffn)] = 0.0f;
      x[static_cast<std::size_t>(5 * ffn)] = 50.0f;
      std::vector<double> expected;
      for (std::int64_t r = 0; r < rows; ++r) {
        const auto at = [&](std::int64_t i) {
          return static_cast<double>(x[static_cast<std::size_t>(r * 2 * ffn + i)]);
        };
        for (std::int64_t i = 0; i < ffn; ++i) {
          expected.push_back(testing_support::activated(at(i), at(ffn + i), activation));
        }
      }
      const auto backend = test::make_backend(Numerics::kF32, 2, GetParam());
      Owned in(*backend, rows, 2 * ffn, 2 * ffn + 3);
      in.set(*backend, x);
      Owned out(*backend, rows, ffn, ffn + 2);
      backend->activate(out.tensor, in.tensor, activation);
      EXPECT_LE(relative_error(out.get(*backend), expected), 1e-5)
          << ffn << ", kind " << static_cast<int>(activation.kind);
    }
  }
}

TEST_P(RowsOnPath, ScalesCapsAndAddsNormedRows) {
  const std::int64_t rows = 5;
  const std::int64_t dim = 77;
  Random random(3);
  auto x = random.normal(rows * dim, 20.0f);
  x[0] = 1e4f;
  x[1] = -1e4f;
  x[2] = 0;
  const auto before = random.normal(rows * dim);
  const auto w = random.normal(dim);
  const std::vector<float> factors = {0.5f, 2, 1, -3, 0.25f};
  const auto backend = test::make_backend(Numerics::kF32, 2, GetParam());
  const auto changed = [&](const auto& change, const auto& meant) {
    Owned out(*backend, rows, dim, dim + 5);
    out.set(*backend, x);
    change(out.tensor);
    std::vector<double> expected;
    for (std::size_t i = 0; i < x.size(); ++i) {
      expected.push_back(meant(static_cast<double>(x[i]), i / static_cast<std::size_t>(dim)));
    }
    return relative_error(out.get(*backend), expected);
  };
  EXPECT_LE(changed([&](Tensor t) { backend->scale(t, 0.3f, 0); },
                    [](double v, std::size_t) { return 0.3 * v; }),
            1e-6);
  EXPECT_LE(changed([&](Tensor t) { backend->scale(t, 0.5f, 15); },
                    [](double v, std::size_t) { return 15 * std::tanh(0.5 * v / 15); }),
            1e-6);
  Owned device_factors(*backend, 1, rows);
  device_factors.set(*backend, factors);
  EXPECT_LE(
      changed([&](Tensor t) { backend->scale_rows(t, device_factors.tensor.data); },
              [&](double v, std::size_t row) { return static_cast<double>(factors[row]) * v; }),
      1e-6);

  Owned weight(*backend, 1, dim);
  weight.set(*backend, w);
  Owned in(*backend, rows, dim, dim + 2);
  in.set(*backend, x);
  for (const bool norm : {false, true}) {
    Owned out(*backend, rows, dim, dim + 5);
    out.set(*backend, before);
    backend->add_normed(out.tensor, in.tensor, norm ? weight.tensor.data : nullptr, 1e-5f, 0.7f);
    std::vector<double> expected;
    for (std::int64_t r = 0; r < rows; ++r) {
      const auto at = [&](std::int64_t i) { return static_cast<std::size_t>(r * dim + i); };
      double square = 0;
      for (std::int64_t i = 0; i < dim; ++i) {
        square += static_cast<double>(x[at(i)]) * static_cast<double>(x[at(i)]);
      }
      const double factor = norm ? 1 / std::sqrt(square / static_cast<double>(dim) + 1e-5) : 1.0;
      for (std::int64_t i = 0; i < dim; ++i) {
        const double of_norm = norm ? static_cast<double>(w[static_cast<std::size_t>(i)]) : 1.0;
        expected.push_back(static_cast<double>(before[at(i)]) +
                           0.7 * factor * of_norm * static_cast<double>(x[at(i)]));
      }
    }
    EXPECT_LE(relative_error(out.get(*backend), expected), 1e-5) << norm;
  }
}

TEST_P(RowsOnPath, GatherRowsCopies) {
  const auto backend = test::make_backend(Numerics::kF32, 1, GetParam());
  Random random(1);
  const auto x = random.normal(5 * 9);
  Owned in(*backend, 5, 9, 11);
  in.set(*backend, x);
  Owned out(*backend, 3, 9);
  const std::vector<std::int32_t> rows = {4, 0, 4};
  backend->gather_rows(out.tensor, in.tensor, rows);
  std::vector<float> expected;
  for (const std::int32_t row : rows) {
    expected.insert(expected.end(), x.begin() + row * 9, x.begin() + row * 9 + 9);
  }
  EXPECT_EQ(first_difference(out.get(*backend), expected), -1);
}

TEST_P(RowsOnPath, CopyFillsColumnsOfAWiderOne) {
  const auto backend = test::make_backend(Numerics::kF32, 1, GetParam());
  Random random(1);
  const auto x = random.normal(5 * 9);
  Owned in(*backend, 5, 9, 11);
  in.set(*backend, x);
  Owned out(*backend, 5, 20, 20);
  const std::vector<float> before(5 * 20, 7.0F);
  out.set(*backend, before);
  backend->copy(out.tensor.columns(8, 9), in.tensor);
  std::vector<float> expected = before;
  for (std::size_t row = 0; row < 5; ++row) {
    std::copy_n(x.begin() + static_cast<std::ptrdiff_t>(9 * row), 9,
                expected.begin() + static_cast<std::ptrdiff_t>(20 * row + 8));
  }
  EXPECT_EQ(first_difference(out.get(*backend), expected), -1);
  EXPECT_THROW(backend->copy(out.tensor, in.tensor), Error);
}

INSTANTIATE_TEST_SUITE_P(Paths, RowsOnPath, testing::ValuesIn(test::kernel_paths()),
                         [](const auto& info) { return info.param; });

TEST(KvStore, CopySlotsCarriesExactlyTheTokensInAllLayers) {
  const auto backend = test::make_backend(Numerics::kF32, 1, test::kernel_paths().front());
  for (const KvFormat format : test::kKvFormats) {
    for (const std::int64_t page_tokens : {8, 16, 32}) {
      for (const auto& [dim, values_are_keys] : {std::pair<std::int64_t, bool>{24, false},
                                                 {25, false},
                                                 {64, false},
                                                 {80, false},
                                                 {24, true},
                                                 {25, true},
                                                 {64, true},
                                                 {80, true}}) {
        const auto store =
            backend->make_kv_store({3, 2, dim, 4, page_tokens, format, false, values_are_keys});
        Random random(2);
        const auto tokens = static_cast<std::int32_t>(page_tokens);
        const std::int64_t count = page_tokens * 2 * dim;
        for (std::int64_t layer = 0; layer < 3; ++layer) {
          store->write(1, layer, tokens, random.normal(count), random.normal(count));
        }
        for (const std::int32_t copied : {1, 5, tokens}) {
          store->copy_slots(1, 3, copied);
          store->flush_copies();
          for (std::int64_t layer = 0; layer < 3; ++layer) {
            const auto size = static_cast<std::size_t>(copied * 2 * dim);
            std::vector<float> k[2] = {std::vector<float>(size), std::vector<float>(size)};
            std::vector<float> v[2] = {std::vector<float>(size), std::vector<float>(size)};
            store->read(1, layer, copied, k[0], v[0]);
            store->read(3, layer, copied, k[1], v[1]);
            EXPECT_EQ(first_difference(k[0], k[1]), -1);
            EXPECT_EQ(first_difference(v[0], v[1]), -1);
            EXPECT_GT(std::abs(k[0][0]), 0.0f);
          }
        }
      }
    }
  }
}

TEST(KvStore, WriteThenReadIsExactAndLeavesOtherPagesAlone) {
  const auto backend = make_cpu_backend(Numerics::kF32, 1);
  const auto store = backend->make_kv_store({2, 3, 40, 3, 16, KvFormat::kBF16});
  Random random(3);
  auto k = random.normal(16 * 3 * 40);
  auto v = random.normal(16 * 3 * 40);
  for (float& value : k) value = to_f32(to_bf16(value));
  for (float& value : v) value = to_f32(to_bf16(value));
  k[5] = kNan;
  store->write(1, 1, 16, k, v);
  std::vector<float> k_back(k.size());
  std::vector<float> v_back(v.size());
  store->read(1, 1, 16, k_back, v_back);
  EXPECT_TRUE(std::isnan(k_back[5]));
  k[5] = k_back[5] = 0;
  EXPECT_EQ(first_difference(k, k_back), -1);
  EXPECT_EQ(first_difference(v, v_back), -1);
  for (const std::int32_t page : {0, 2}) {
    store->read(page, 1, 16, k_back, v_back);
    for (const float value : k_back) EXPECT_EQ(value, 0.0f);
  }
}

TEST(CpuBackend, NamesItsPathAndRefusesAnUnknownOne) {
  EXPECT_EQ(cpu_kernel_paths().back(), "portable");
  for (const std::string& path : cpu_kernel_paths()) {
    const auto backend = make_cpu_backend(Numerics::kBF16, 1, path);
    EXPECT_EQ(backend->info().kernels, path);
    EXPECT_EQ(backend->info().numerics_key, "cpu/" + path + "/bf16");
  }
  EXPECT_THROW(make_cpu_backend(Numerics::kF32, 1, "abacus"), Error);
}

TEST(CpuBackend, ByDefaultTakesThePathThatTheEnvironmentNames) {
  const auto by_default = [] { return make_cpu_backend(Numerics::kF32, 1)->info(); };
  for (const std::string& path : cpu_kernel_paths()) {
    const test::ScopedVariable name("DENDRITE_TEST_KERNELS", path);
    EXPECT_EQ(by_default().kernels, path);
    EXPECT_EQ(make_cpu_backend(Numerics::kF32, 1, "portable")->info().kernels, "portable");
  }
  {
    const test::ScopedVariable name("DENDRITE_TEST_KERNELS", "amx_bf16_model");
    EXPECT_EQ(by_default().numerics_key, "cpu/amx_bf16/f32");
  }
  for (const std::optional<std::string>& none : {std::optional<std::string>(""), {}}) {
    const test::ScopedVariable name("DENDRITE_TEST_KERNELS", none);
    EXPECT_EQ(by_default().kernels, cpu_kernel_paths().front());
  }
  const test::ScopedVariable name("DENDRITE_TEST_KERNELS", "abacus");
  try {
    by_default();
    ADD_FAILURE() << "no error";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("\"abacus\" (DENDRITE_TEST_KERNELS"),
              std::string::npos)
        << error.what();
  }
}

TEST(CpuBackend, RefusesWrongShapesNamingTheOp) {
  const auto backend = make_cpu_backend(Numerics::kF32, 1);
  const auto weight = backend->random_weight(10, 20, DType::kF32, 1);
  Owned x(*backend, 2, 21);
  Owned out(*backend, 2, 10);
  try {
    backend->matmul(out.tensor, x.tensor, *weight, nullptr, Backend::Store::kOverwrite);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(std::string(error.what()),
              "matmul: x has shape [2, 21] with stride 21, expected [2, 20]");
  }
}

}  // namespace
}  // namespace dendrite
