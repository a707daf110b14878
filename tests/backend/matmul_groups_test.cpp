// Products of grouped weights, which a CPU keeps as they are stored.
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>

#include "support/paths.h"
#include "test_support.h"

namespace dendrite {
namespace {

using testing_support::all_blocks;
using testing_support::Blocks;
using testing_support::FileMatrix;
using testing_support::first_difference;
using testing_support::first_different_part;
using testing_support::Owned;
using testing_support::product;
using testing_support::Random;
using testing_support::reference_matmul;
using testing_support::refusal;
using testing_support::relative_error;
using testing_support::rounded_in_groups;

class MatmulOfGroups : public testing::TestWithParam<std::string> {
 protected:
  void SetUp() override {
    if (test::on_cuda()) GTEST_SKIP() << "see packed_products_test.cpp";
  }
};

INSTANTIATE_TEST_SUITE_P(Paths, MatmulOfGroups, testing::ValuesIn(test::kernel_paths()),
                         [](const auto& path) { return path.param; });

TEST_P(MatmulOfGroups, EqualsDoublePrecisionOfRoundedActivations) {
  const auto backend = test::make_backend(Numerics::kBF16, 2, GetParam());
  for (const Blocks& blocks : all_blocks()) {
    for (const std::int64_t k : {256, 768, 1024 + 96}) {
      if (k % blocks.format->block() != 0) continue;
      constexpr std::int64_t n = 70;
      constexpr std::int64_t kRows = 9;
      Random random(static_cast<std::uint32_t>(k));
      const FileMatrix w(n, k, *blocks.format, blocks.halves, random);
      const auto x = random.normal(kRows * k);
      const auto weight = backend->pack({&w.host, 1});
      Owned in(*backend, kRows, k, k + 5);
      in.set(*backend, x);
      const auto got = product(*backend, *weight, in.tensor);
      const auto rounded = rounded_in_groups(x, k);
      EXPECT_LE(relative_error(got, reference_matmul(rounded, w.values, kRows, n, k)), 1e-5)
          << blocks.format->name() << " k " << k;
      EXPECT_LE(relative_error(got, reference_matmul(x, w.values, kRows, n, k)), 4e-2)
          << blocks.format->name() << " k " << k;
    }
  }
}

TEST_P(MatmulOfGroups, RowsHaveTheSameBitsForAnyNumberOfRowsAndThreads) {
  constexpr std::int64_t kRows = 110;
  constexpr std::int64_t n = 130;
  constexpr std::int64_t k = 512;
  for (const Blocks& blocks : all_blocks()) {
    Random random(9);
    const FileMatrix w(n, k, *blocks.format, blocks.halves, random);
    const auto x = random.normal(kRows * k);
    std::vector<float> expected;
    for (const int threads : {1, 3}) {
      const auto backend = test::make_backend(Numerics::kBF16, threads, GetParam());
      const auto weight = backend->pack({&w.host, 1});
      Owned in(*backend, kRows, k);
      in.set(*backend, x);
      if (expected.empty()) {
        for (std::int64_t row = 0; row < kRows; ++row) {
          const auto alone = product(*backend, *weight, {in.tensor.data + row * k, 1, k, k});
          expected.insert(expected.end(), alone.begin(), alone.end());
        }
      }
      for (const std::int64_t rows : {2, 3, 5, 6, 7, 12, 13, 24, 31, 96, 97, 110}) {
        const auto got = product(*backend, *weight, in.tensor.first_rows(rows));
        ASSERT_EQ(first_difference(got, std::span(expected).first(got.size())), -1)
            << blocks.format->name() << " " << rows << " rows, " << threads << " threads";
      }
    }
  }
}

TEST_P(MatmulOfGroups, AreKeptAsTheyAreStoredAndReadBackExactly) {
  const auto backend = test::make_backend(Numerics::kBF16, 1, GetParam());
  for (const Blocks& blocks : all_blocks()) {
    constexpr std::int64_t n = 128;
    constexpr std::int64_t k = 768;
    Random random(4);
    const FileMatrix w(n, k, *blocks.format, blocks.halves, random);
    const auto weight = backend->pack({&w.host, 1});
    EXPECT_EQ(static_cast<double>(weight->size_bytes()) * 8 / (n * k), blocks.bits)
        << blocks.format->name();
    const std::vector<std::int32_t> tokens{0, 63, 64, 127};
    Owned out(*backend, 4, k);
    backend->embed(out.tensor, tokens, *weight);
    const auto got = out.get(*backend);
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      const auto row = std::span(w.values).subspan(static_cast<std::size_t>(tokens[i] * k), k);
      EXPECT_TRUE(std::ranges::equal(std::span(got).subspan(i * k, k), row))
          << blocks.format->name();
    }
  }
}

TEST_P(MatmulOfGroups, AreWidenedWhereActivationsStayF32) {
  const auto backend = test::make_backend(Numerics::kF32, 1, GetParam());
  for (const Blocks& blocks : all_blocks()) {
    constexpr std::int64_t n = 20;
    constexpr std::int64_t k = 512;
    Random random(3);
    const FileMatrix w(n, k, *blocks.format, blocks.halves, random);
    const auto x = random.normal(k);
    Owned in(*backend, 1, k);
    in.set(*backend, x);
    const auto got = product(*backend, *backend->pack({&w.host, 1}), in.tensor);
    EXPECT_LE(relative_error(got, reference_matmul(x, w.values, 1, n, k)), 1e-5)
        << blocks.format->name();
  }
}

TEST_P(MatmulOfGroups, OfSeveralFormatsStandBelowEachOther) {
  const auto backend = test::make_backend(Numerics::kBF16, 1, GetParam());
  constexpr std::int64_t k = 256;
  Random random(8);
  const auto blocks = all_blocks();
  const FileMatrix first(40, k, *blocks[8].format, blocks[8].halves, random);
  const FileMatrix second(24, k, *blocks[10].format, blocks[10].halves, random);
  const FileMatrix third(8, k, DType::kBF16, random.normal(8 * k, 0.02f));
  const StoredMatrix parts[] = {first.host, second.host, third.host};
  Owned in(*backend, 3, k);
  in.set(*backend, random.normal(3 * k));
  EXPECT_EQ(first_different_part(*backend, parts, in.tensor), -1);
}

TEST_P(MatmulOfGroups, TakeActivationsOfAnySize) {
  const auto backend = test::make_backend(Numerics::kBF16, 1, GetParam());
  constexpr std::int64_t k = 256;
  Random random(2);
  const FileMatrix w(5, k, q8_0_format(), std::vector<std::int64_t>{0}, random);
  const auto weight = backend->pack({&w.host, 1});
  for (const float size : {0.0f, 1e-38f, 1e-20f, 1e20f}) {
    auto x = random.normal(k);
    for (float& value : x) value *= size;
    Owned in(*backend, 1, k);
    in.set(*backend, x);
    const auto got = product(*backend, *weight, in.tensor);
    const auto exact = reference_matmul(x, w.values, 1, 5, k);
    for (std::size_t i = 0; i < got.size(); ++i) {
      EXPECT_NEAR(got[i], exact[i], 0.5 * static_cast<double>(size) + 1e-35) << size;
    }
  }
}

TEST_P(MatmulOfGroups, WhatIsNotFiniteStaysSo) {
  const auto backend = test::make_backend(Numerics::kBF16, 1, GetParam());
  constexpr std::int64_t k = 256;
  Random random(2);
  const FileMatrix w(5, k, q4_0_format(), std::vector<std::int64_t>{0}, random);
  const auto weight = backend->pack({&w.host, 1});
  for (const float odd : {testing_support::kNan, std::numeric_limits<float>::infinity()}) {
    for (const std::int64_t rows : {2, 70}) {
      auto x = random.normal(rows * k);
      x[40] = odd;
      Owned in(*backend, rows, k);
      in.set(*backend, x);
      const auto got = product(*backend, *weight, in.tensor);
      for (std::size_t i = 0; i < got.size(); ++i) {
        EXPECT_EQ(std::isfinite(got[i]), i >= 5) << rows << " rows, " << i;  // the others' are
      }
    }
  }
}

TEST_P(MatmulOfGroups, RefuseScalesThatAreNotFinite) {
  const auto backend = test::make_backend(Numerics::kBF16, 1, GetParam());
  Random random(6);
  FileMatrix w(70, 256, q4_k_format(), std::vector<std::int64_t>{0, 2}, random);
  const std::uint16_t nan = 0x7e00;
  std::memcpy(&w.bytes[144 * 65 + 2], &nan, 2);  // row 65's minimum
  const std::string said = refusal(*backend, w.host);
  EXPECT_NE(said.find("\"test.weight\" holds NaN at element 16640"), std::string::npos) << said;
}

TEST(GroupsOnPaths, FusedPathsHaveTheSameBits) {
  // Sums of codes are whole numbers, and the rest is the same operations.
  if (test::on_cuda()) GTEST_SKIP() << "paths of a CPU";
  std::vector<std::string> paths = test::kernel_paths();
  if (std::ranges::find(paths, "amx_bf16_model") == paths.end()) {
    paths.emplace_back("amx_bf16_model");
  }
  std::erase(paths, "portable");  // two roundings
  std::vector<std::unique_ptr<Backend>> backends;
  for (const std::string& path : paths) {
    backends.push_back(test::make_backend(Numerics::kBF16, 1, path));
  }
  for (const Blocks& blocks : all_blocks()) {
    // Many rows go by tiles where there are some: the last four units of 32 may not be whole.
    for (const auto& [rows, k] :
         {std::pair<std::int64_t, std::int64_t>{4, 768}, {70, 768}, {70, 352}}) {
      if (k % blocks.format->block() != 0) continue;
      Random random(7);
      const FileMatrix w(66, k, *blocks.format, blocks.halves, random);
      const auto x = random.normal(rows * k);
      std::vector<float> expected;
      for (std::size_t i = 0; i < paths.size(); ++i) {
        Backend& backend = *backends[i];
        Owned in(backend, rows, k);
        in.set(backend, x);
        const auto got = product(backend, *backend.pack({&w.host, 1}), in.tensor);
        if (expected.empty()) expected = got;
        EXPECT_EQ(first_difference(got, expected), -1)
            << paths[i] << " " << blocks.format->name() << " " << rows << " x " << k;
      }
    }
  }
}

}  // namespace
}  // namespace dendrite
