#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "backend/logits_sampler.h"
#include "dendrite/error.h"
#include "sample/sampler.h"
#include "support/paths.h"
#include "test_support.h"

namespace dendrite {
namespace {

using testing_support::kNan;
using testing_support::Owned;
using testing_support::Random;

/// Draws on devices that have a sampler; for the others the host draws.
class DrawOnDevice : public testing::TestWithParam<std::string> {
 protected:
  LogitsSampler& sampler() { return *backend_->sampler(); }

  std::unique_ptr<Backend> backend_ = test::make_backend(ComputeType::kBF16, 2, GetParam());
};

std::vector<std::string> devices_that_draw() {
  return test::on_cuda() ? std::vector<std::string>{"cuda"} : std::vector<std::string>{};
}

GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DrawOnDevice);  // a CPU
INSTANTIATE_TEST_SUITE_P(Devices, DrawOnDevice, testing::ValuesIn(devices_that_draw()));

struct Case {
  std::int64_t vocab;
  double temperature;
  std::int64_t top_k = 0;
  double top_p = 1;
  double min_p = 0;
};

const std::vector<Case> kCases = {
    {1, 1.0},         {7, 0.7},           {4096, 1.0},           {4097, 0.3},
    {32003, 0.7},     {128256, 1.5},      {1000, 0.0},           {1000, 1.0, 5},
    {5000, 0.8, 1},   {5000, 0.9, 0, .9}, {128256, 0.7, 50, .8}, {5000, 1.0, 0, 1, 0.05},
    {700, 1.0, 9000}, {300, 1.0, 0, 1e-9}};

/// Logits with ties, a NaN and a -inf in every row.
std::vector<float> make_logits(std::int64_t rows, std::int64_t vocab, std::uint32_t seed) {
  Random random(seed);
  auto logits = random.normal(rows * vocab, 2.5f);
  for (float& value : logits) value = std::round(value * 64) / 64;
  for (std::int64_t r = 0; r < rows && vocab > 3; ++r) {
    logits[static_cast<std::size_t>(r * vocab + 1)] = kNan;
    logits[static_cast<std::size_t>(r * vocab + 2)] = -INFINITY;
  }
  return logits;
}

/// In double precision, as the host's sampler says it; NaN and -inf weigh nothing.
double log_sum_exp_of(std::span<const float> row) {
  double sum = 0;
  for (const float x : row) sum += x > -INFINITY ? std::exp(static_cast<double>(x)) : 0;
  return std::log(sum);
}

TEST_P(DrawOnDevice, AgreesWithTheHostsSamplerAndIgnoresCompany) {
  constexpr std::int64_t kRows = 5;
  constexpr int kDraws = 150;
  for (const Case& c : kCases) {
    const auto values = make_logits(kRows, c.vocab, static_cast<std::uint32_t>(c.vocab));
    Owned logits(*backend_, kRows, c.vocab, c.vocab + 3);
    logits.set(*backend_, values);
    std::vector<Draw> draws(kDraws);
    for (int i = 0; i < kDraws; ++i) {
      Draw& draw = draws[static_cast<std::size_t>(i)];
      draw.row = i % kRows;
      draw.temperature = c.temperature;
      draw.top_k = c.top_k;
      draw.top_p = c.top_p;
      draw.min_p = c.min_p;
      draw.uniform = (i * 0.6180339887) - std::floor(i * 0.6180339887);
    }
    sampler().draw(logits.tensor, draws);
    const SamplerSettings settings{
        .temperature = c.temperature, .top_k = c.top_k, .top_p = c.top_p, .min_p = c.min_p};
    int others = 0;
    for (const Draw& draw : draws) {
      const auto row = std::span(values).subspan(static_cast<std::size_t>(draw.row * c.vocab),
                                                 static_cast<std::size_t>(c.vocab));
      // Roundings of the weights move a boundary between two tokens by about 1e-7.
      SamplerScratch scratch;
      const auto host = [&](double uniform) {
        return sample(row, {}, settings, std::clamp(uniform, 0.0, 1 - 1e-12), scratch);
      };
      const bool same = draw.token == host(draw.uniform) ||
                        draw.token == host(draw.uniform - 1e-5) ||
                        draw.token == host(draw.uniform + 1e-5);
      if (!same) ++others;
      ASSERT_GE(draw.token, 0);
      ASSERT_LT(draw.token, c.vocab);
      EXPECT_NEAR(
          draw.logprob,
          static_cast<double>(row[static_cast<std::size_t>(draw.token)]) - log_sum_exp_of(row),
          1e-5);
    }
    EXPECT_EQ(others, 0) << "vocab " << c.vocab << " top_k " << c.top_k << " top_p " << c.top_p;
    for (int i = 0; i < kDraws; i += 37) {
      Draw alone = draws[static_cast<std::size_t>(i)];
      alone.token = -1;
      sampler().draw(logits.tensor, std::span(&alone, 1));
      EXPECT_EQ(alone.token, draws[static_cast<std::size_t>(i)].token);
      EXPECT_EQ(alone.logprob, draws[static_cast<std::size_t>(i)].logprob);
    }
  }
}

TEST_P(DrawOnDevice, MixedSettingsShareALaunch) {
  const auto values = make_logits(1, 3000, 3);
  Owned logits(*backend_, 1, 3000);
  logits.set(*backend_, values);
  std::vector<Draw> together;
  for (int i = 0; i < 80; ++i) {
    Draw draw;
    draw.temperature = i % 3 == 0 ? 0.0 : 0.9;
    draw.top_k = i % 2 == 0 ? 20 : 0;
    draw.uniform = i / 80.0;
    together.push_back(draw);
  }
  auto alone = together;
  sampler().draw(logits.tensor, together);
  for (std::size_t i = 0; i < alone.size(); ++i) {
    sampler().draw(logits.tensor, std::span(&alone[i], 1));
    EXPECT_EQ(alone[i].token, together[i].token) << i;
    EXPECT_EQ(alone[i].logprob, together[i].logprob) << i;
  }
}

TEST_P(DrawOnDevice, LogProbsEqualDoublePrecisionAndThoseOfDraws) {
  for (const std::int64_t vocab : {5, 4096, 50257}) {
    constexpr std::int64_t kRows = 9;
    Random random(static_cast<std::uint32_t>(vocab));
    const auto values = random.normal(kRows * vocab, 4.0f);
    Owned logits(*backend_, kRows, vocab);
    logits.set(*backend_, values);
    std::vector<Draw> draws(kRows);
    std::vector<TokenQuery> queries;
    for (std::int32_t r = 0; r < kRows; ++r) {
      draws[static_cast<std::size_t>(r)].row = r;
      draws[static_cast<std::size_t>(r)].temperature = 1;
      draws[static_cast<std::size_t>(r)].uniform = 0.5;
    }
    sampler().draw(logits.tensor, draws);
    for (const Draw& draw : draws) {
      queries.push_back({draw.row, draw.token});
      queries.push_back({draw.row, 0});
    }
    std::vector<float> got(queries.size());
    sampler().log_probs(logits.tensor, queries, got);
    for (std::size_t i = 0; i < queries.size(); ++i) {
      const auto row = std::span(values).subspan(static_cast<std::size_t>(queries[i].row * vocab),
                                                 static_cast<std::size_t>(vocab));
      EXPECT_NEAR(got[i],
                  static_cast<double>(row[static_cast<std::size_t>(queries[i].token)]) -
                      log_sum_exp_of(row),
                  1e-5);
      if (i % 2 == 0) {
        EXPECT_EQ(got[i], draws[i / 2].logprob);
      }
    }
    TokenQuery outside{0, static_cast<std::int32_t>(vocab)};
    EXPECT_THROW(sampler().log_probs(logits.tensor, {&outside, 1}, std::span(got).first(1)), Error);
  }
}

}  // namespace
}  // namespace dendrite
