#include "sample/distribution.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>

namespace dendrite {
namespace {

std::vector<float> random_logits(std::mt19937& random, std::size_t vocab) {
  std::normal_distribution<float> normal(3.0f, 8.0f);
  std::vector<float> out(vocab);
  for (float& value : out) value = normal(random);
  return out;
}

TEST(Distribution, LogSumExpIsThatOfDoublePrecision) {
  std::mt19937 random(1);
  for (const std::size_t vocab : {1u, 2u, 15u, 16u, 17u, 320u, 4095u, 4096u, 4097u, 151936u}) {
    const std::vector<float> logits = random_logits(random, vocab);
    const double max = *std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (const float value : logits) sum += std::exp(value - max);
    const double expected = max + std::log(sum);
    EXPECT_NEAR(log_sum_exp(logits), expected, 1e-6 * std::max(1.0, std::abs(expected))) << vocab;
  }
  const std::vector<float> far{1000.0f, -1000.0f, 1000.0f};
  EXPECT_NEAR(log_sum_exp(far), 1000.0 + std::log(2.0), 1e-6 * 1000);
  const std::vector<float> low(5, -50000.0f);
  EXPECT_NEAR(log_sum_exp(low), -50000.0 + std::log(5.0), 0.05);
}

TEST(Distribution, ArgmaxTakesTheFirstOfEqualsAndNoNan) {
  std::mt19937 random(2);
  for (int round = 0; round < 300; ++round) {
    std::vector<float> logits = random_logits(random, 1 + random() % 100);
    for (float& value : logits) value = std::round(value / 4);  // ties
    const auto expected = std::max_element(logits.begin(), logits.end()) - logits.begin();
    ASSERT_EQ(argmax(logits), expected);
    ASSERT_EQ(top_logprobs(logits, 0, 1)[0].id, expected);
  }
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> holes{nan, 1, nan, 2, nan};
  EXPECT_EQ(argmax(holes), 3);
}

TEST(Distribution, TopLogprobsAreSortedAndComplete) {
  std::mt19937 random(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<float> logits = random_logits(random, 1 + random() % 500);
    if (round % 2 == 0) {
      for (float& value : logits) value = std::round(value / 3);
    }
    const double lse = log_sum_exp(logits);
    const std::size_t n = random() % 20;
    const std::vector<TokenLogprob> top = top_logprobs(logits, lse, n);
    std::vector<Token> expected;
    for (std::size_t i = 0; i < logits.size(); ++i) expected.push_back(static_cast<Token>(i));
    std::stable_sort(expected.begin(), expected.end(), [&](Token a, Token b) {
      return logits[static_cast<std::size_t>(a)] > logits[static_cast<std::size_t>(b)];
    });
    ASSERT_EQ(top.size(), std::min(n, logits.size()));
    for (std::size_t i = 0; i < top.size(); ++i) {
      ASSERT_EQ(top[i].id, expected[i]);
      ASSERT_FLOAT_EQ(top[i].logprob,
                      static_cast<float>(logits[static_cast<std::size_t>(top[i].id)] - lse));
    }
  }
}

TEST(Distribution, TopLogprobsUnderAMaskAreRawAndOfWhatItAllows) {
  std::mt19937 random(6);
  for (int round = 0; round < 200; ++round) {
    std::vector<float> logits = random_logits(random, 1 + random() % 300);
    if (round % 2 == 0) {
      for (float& value : logits) value = std::round(value / 3);
    }
    std::vector<std::uint32_t> mask(mask_words(logits.size()));
    for (std::uint32_t& word : mask) word = round % 10 == 0 ? 0 : random() & random();
    const double lse = log_sum_exp(logits);
    const std::size_t n = random() % 30;
    std::vector<TokenLogprob> expected;
    for (const TokenLogprob& token : top_logprobs(logits, lse, logits.size())) {
      const auto id = static_cast<std::size_t>(token.id);
      if ((mask[id / 32] >> id % 32 & 1u) != 0 && expected.size() < n) expected.push_back(token);
    }
    const std::vector<TokenLogprob> top = top_logprobs(logits, lse, n, mask);
    ASSERT_EQ(top.size(), expected.size());
    for (std::size_t i = 0; i < top.size(); ++i) {
      ASSERT_EQ(top[i].id, expected[i].id);
      ASSERT_EQ(top[i].logprob, expected[i].logprob);
    }
  }
}

TEST(Distribution, ProbabilitiesSumToOne) {
  std::mt19937 random(4);
  const std::vector<float> logits = random_logits(random, 32000);
  const double lse = log_sum_exp(logits);
  double sum = 0;
  for (const TokenLogprob& token : top_logprobs(logits, lse, logits.size())) {
    sum += std::exp(static_cast<double>(token.logprob));
  }
  EXPECT_NEAR(sum, 1, 1e-5);
}

}  // namespace
}  // namespace dendrite
