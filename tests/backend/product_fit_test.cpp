#include "backend/product_fit.h"

#include <gtest/gtest.h>

#include <cmath>

#include "backend/rounding.h"
#include "support/f32_matrix.h"
#include "test_support.h"

namespace dendrite {
namespace {

using testing_support::Owned;
using testing_support::Random;
using Verdict = Compatibility::Verdict;

constexpr std::int64_t kCols = 512;
constexpr std::int64_t kRows = 192;
constexpr float kLarge = 96.5F;

/// A matrix behind a norm, of which every 32nd weight is multiplied by `times`. `even_out`: the
/// matrix's columns are divided by the same.
struct Around {
  std::vector<float> norm = std::vector<float>(kCols, 1.0F);
  std::vector<float> values;

  explicit Around(float times, bool even_out = false) {
    values = Random(7).normal(kRows * kCols, 1.0F / std::sqrt(static_cast<float>(kCols)));
    for (std::size_t i = 5; i < norm.size(); i += 32) {
      norm[i] *= times;
      if (!even_out) continue;
      for (std::size_t at = i; at < values.size(); at += kCols) values[at] /= times;
    }
  }
  StoredMatrix matrix() const { return test::f32_matrix(values, kRows, kCols); }
  ProductFit fit() const {
    const StoredMatrix one = matrix();
    return fit_of({norm}, {&one, 1});
  }
};

/// The norms of heads alone: what is in front of the product is even.
ProductFit fit_of_heads(std::vector<float> q, std::vector<float> k, std::int64_t rotary_dim) {
  const Around around(1);
  const StoredMatrix one = around.matrix();
  return fit_of({around.norm, std::move(q), std::move(k), rotary_dim}, {&one, 1});
}

TEST(ProductFit, HasTheThresholdsAtTheirBorders) {
  const auto verdict = [](double score, double largest) {
    return ProductFit{score, largest}.verdict();
  };
  EXPECT_EQ(verdict(std::nextafter(0.8, 1.0), std::nextafter(10.0, 0.0)), Verdict::kCompatible);
  EXPECT_EQ(verdict(0.8, 1), Verdict::kWarn);
  EXPECT_EQ(verdict(1, 10), Verdict::kWarn);
  EXPECT_EQ(verdict(0.5, 1), Verdict::kWarn);
  EXPECT_EQ(verdict(0.5, 1000), Verdict::kWarn);
  EXPECT_EQ(verdict(std::nextafter(0.5, 0.0), 1), Verdict::kIncompatible);
}

TEST(ProductFit, IsWholeWithEvenNorms) {
  EXPECT_EQ(Around(1).fit().score, 1);
  EXPECT_EQ(Around(1).fit().largest, 1);
  const std::vector<float> heads(64, 3.0F);
  EXPECT_EQ(fit_of_heads(heads, heads, 64).score, 1);
}

TEST(ProductFit, FallsWhereALargeNormWeightTakesTheBitsOfItsNeighbours) {
  const ProductFit large = Around(kLarge, true).fit();
  EXPECT_NEAR(large.largest, kLarge, 1e-3);
  EXPECT_LT(large.score, 0.1);
  EXPECT_EQ(Around(10, true).fit().verdict(), Verdict::kIncompatible);
  // What is large in the sum, too, hides the loss of the others.
  EXPECT_GT(Around(kLarge).fit().score, 2 * large.score);
}

TEST(ProductFit, IsWhatProductsOfGroupsMakeOfIt) {
  Numerics numerics;
  numerics.rounding = WeightRounding::kInt8;
  const auto error = [&](const Around& around) {
    const auto backend = make_cpu_backend(numerics, 1, "portable");
    const RoundedMatrix rounded(around.matrix(), numerics.rounding);
    const StoredMatrix& matrix = rounded.matrix();
    EXPECT_TRUE(backend->rounds_inputs(matrix));
    const auto groups = backend->pack({&matrix, 1});
    const auto exact = make_cpu_backend(Numerics::kF32, 1, "portable");
    const auto widened = exact->pack({&matrix, 1});
    std::vector<float> x = Random(9).normal(16 * kCols);
    for (std::size_t i = 0; i < x.size(); ++i) x[i] *= around.norm[i % kCols];
    const auto product = [&](Backend& on, const Weight& weight) {
      Owned in(on, 16, kCols);
      const Owned out(on, 16, kRows);
      in.set(on, x);
      on.matmul(out.tensor, in.tensor, weight, nullptr, Backend::Store::kOverwrite);
      return out.get(on);
    };
    const std::vector<float> got = product(*backend, *groups);
    const std::vector<float> expected = product(*exact, *widened);
    double squares = 0;
    double sum = 0;
    for (std::size_t i = 0; i < got.size(); ++i) {
      squares += std::pow(static_cast<double>(got[i]) - expected[i], 2);
      sum += static_cast<double>(expected[i]) * expected[i];
    }
    return std::sqrt(squares / sum);
  };
  const double even = error(Around(1));
  for (const float times : {4.0F, 10.0F, kLarge}) {
    for (const bool even_out : {false, true}) {
      const Around around(times, even_out);
      EXPECT_NEAR(around.fit().score * error(around) / even, 1, 0.15) << times << even_out;
    }
  }
}

TEST(ProductFit, FallsWithLargeNormsOfKeys) {
  const std::vector<float> even(128, 1.0F);
  std::vector<float> large = even;
  large[60] = kLarge;
  const ProductFit fit = fit_of_heads(even, large, 128);
  EXPECT_NEAR(fit.largest, kLarge, 1e-3);
  EXPECT_EQ(fit.verdict(), Verdict::kIncompatible);
  // Queries that undo it are heard where RoPE does not mix the dim with another.
  std::vector<float> small = even;
  small[60] = 1 / kLarge;
  EXPECT_NEAR(fit_of_heads(small, large, 0).score, 1, 1e-6);
  EXPECT_EQ(fit_of_heads(small, large, 128).verdict(), Verdict::kIncompatible);
  EXPECT_NEAR(fit_of_heads(small, large, 32).score, 1, 1e-6);  // dim 60 is not rotated
}

TEST(ProductFit, OfEmptyWeightsIsWhole) {
  Around zeros(1);
  std::ranges::fill(zeros.values, 0.0F);
  EXPECT_EQ(zeros.fit().score, 1);
  std::ranges::fill(zeros.norm, 0.0F);
  EXPECT_EQ(zeros.fit().score, 1);
  EXPECT_EQ(zeros.fit().largest, 1);
  const std::vector<float> none(64, 0.0F);
  EXPECT_EQ(fit_of_heads(none, none, 64).score, 1);
}

TEST(ProductFit, OfAModelIsItsWorstProducts) {
  Compatibility all;
  add(all, {1, 2}, "a", false);
  EXPECT_EQ(warning_of(all), "");
  add(all, {0.7, 3}, "b", false);
  EXPECT_EQ(all.verdict, Verdict::kWarn);
  add(all, {0.2, 96.5}, "c", true);
  add(all, {0.9, 11}, "d", false);
  EXPECT_EQ(all.verdict, Verdict::kIncompatible);
  EXPECT_EQ(all.score, 0.2);
  EXPECT_EQ(all.largest, 96.5);
  EXPECT_EQ(all.product, "c");
  EXPECT_EQ(all.products, 4);
  EXPECT_EQ(all.warned, 2);
  EXPECT_EQ(all.incompatible, 1);
  EXPECT_EQ(all.unrounded, 1);
  EXPECT_NE(warning_of(all).find("96.5 times"), std::string::npos) << warning_of(all);
  EXPECT_NE(warning_of(all).find("1 of 4 products do not"), std::string::npos) << warning_of(all);
  EXPECT_NE(warning_of(all).find("2 of 4 round"), std::string::npos) << warning_of(all);
}

}  // namespace
}  // namespace dendrite
