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
#include "support/sampling_backend.h"
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

  std::unique_ptr<Backend> backend_ = test::make_backend(Numerics::kBF16, 2, GetParam());
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

/// Logits with ties, a NaN (or what stands for it) and a -inf in every row.
std::vector<float> make_logits(std::int64_t rows, std::int64_t vocab, std::uint32_t seed,
                               float nan = kNan) {
  Random random(seed);
  auto logits = random.normal(rows * vocab, 2.5f);
  for (float& value : logits) value = std::round(value * 64) / 64;
  for (std::int64_t r = 0; r < rows && vocab > 3; ++r) {
    logits[static_cast<std::size_t>(r * vocab + 1)] = nan;
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
        return sample(row, {}, settings, {}, std::clamp(uniform, 0.0, 1 - 1e-12), scratch);
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
      EXPECT_EQ(alone.lse, draws[static_cast<std::size_t>(i)].lse);
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
    sampler().log_probs(logits.tensor, queries);
    for (std::size_t i = 0; i < queries.size(); ++i) {
      const auto row = std::span(values).subspan(static_cast<std::size_t>(queries[i].row * vocab),
                                                 static_cast<std::size_t>(vocab));
      const double lse = log_sum_exp_of(row);
      const double logit = row[static_cast<std::size_t>(queries[i].token)];
      EXPECT_NEAR(queries[i].logprob, logit - lse, 1e-5);
      EXPECT_NEAR(queries[i].lse, lse, 1e-5);
      EXPECT_EQ(queries[i].logprob, static_cast<float>(logit - queries[i].lse));
      if (i % 2 == 0) {
        EXPECT_EQ(queries[i].logprob, draws[i / 2].logprob);
        EXPECT_EQ(queries[i].lse, draws[i / 2].lse);
      }
    }
    TokenQuery outside{0, static_cast<std::int32_t>(vocab)};
    EXPECT_THROW(sampler().log_probs(logits.tensor, {&outside, 1}), Error);
  }
}

TEST_P(DrawOnDevice, LogProbsTellTheLikeliestTokenThatAGreedyDrawTakes) {
  for (const std::int64_t vocab : {7, 4096, 4097, 128256}) {
    constexpr std::int64_t kRows = 5;
    auto values = make_logits(kRows, vocab, static_cast<std::uint32_t>(vocab) + 1);
    for (std::int64_t r = 0; r < kRows; ++r) {  // ties: within a chunk, and at the row's end
      const auto row = std::span(values).subspan(static_cast<std::size_t>(r * vocab),
                                                 static_cast<std::size_t>(vocab));
      row[static_cast<std::size_t>(3 + r % 2)] = 50;
      row.back() = 50;
    }
    Owned logits(*backend_, kRows, vocab, vocab + 1);
    logits.set(*backend_, values);
    std::vector<Draw> draws(kRows);
    std::vector<TokenQuery> queries;
    for (std::int32_t r = 0; r < kRows; ++r) {
      draws[static_cast<std::size_t>(r)].row = r;
      queries.push_back({r, static_cast<std::int32_t>(vocab - 1)});
    }
    sampler().draw(logits.tensor, draws);
    sampler().log_probs(logits.tensor, queries);
    for (std::size_t r = 0; r < queries.size(); ++r) {
      EXPECT_EQ(queries[r].likeliest, static_cast<std::int32_t>(3 + r % 2));
      EXPECT_EQ(queries[r].likeliest, draws[r].token);
    }
  }
}

/// Draws with masks, on a device that has a sampler or on the CPU as one.
class MaskedDraw : public DrawOnDevice {
 protected:
  MaskedDraw() {
    if (!on_cuda()) {
      backend_ = std::make_unique<test::SamplingBackend>(Numerics::kBF16, 2, GetParam());
    }
  }
  static bool on_cuda() { return test::on_cuda(); }
  /// (The host's log_sum_exp takes no NaN.)
  static std::vector<float> rows_of_logits(std::int64_t rows, std::int64_t vocab) {
    return make_logits(rows, vocab, static_cast<std::uint32_t>(vocab) + 5,
                       on_cuda() ? kNan : -INFINITY);
  }
};

INSTANTIATE_TEST_SUITE_P(Devices, MaskedDraw,
                         testing::Values(test::on_cuda() ? "cuda" : cpu_kernel_paths().front()));

using Words = std::vector<std::uint32_t>;

bool allows(const std::uint32_t* mask, std::int64_t token) {
  return mask == nullptr || (mask[token / 32] >> token % 32 & 1u) != 0;
}
void allow(Words& mask, std::int64_t token) {
  mask[static_cast<std::size_t>(token / 32)] |= 1u << token % 32;
}

/// Masks of all tokens, of half of them, of few, of one and of the last one.
std::vector<Words> make_masks(std::int64_t vocab) {
  Random random(static_cast<std::uint32_t>(vocab) + 7);
  const std::size_t words = mask_words(static_cast<std::size_t>(vocab));
  std::vector<Words> masks(5, Words(words));
  masks[0].assign(words, ~0u);
  for (std::uint32_t& word : masks[1]) {
    word = static_cast<std::uint32_t>(random.in(0, 0xffffffff));
  }
  allow(masks[1], vocab - 1);
  for (int i = 0; i < 20; ++i) allow(masks[2], random.in(0, vocab - 1));
  allow(masks[3], random.in(0, vocab - 1));
  allow(masks[4], vocab - 1);
  return masks;
}

Draw draw_of(const Case& c, std::int32_t row, int i) {
  Draw draw;
  draw.row = row;
  draw.temperature = c.temperature;
  draw.top_k = c.top_k;
  draw.top_p = c.top_p;
  draw.min_p = c.min_p;
  draw.uniform = (i * 0.6180339887) - std::floor(i * 0.6180339887);
  return draw;
}

void expect_equal(const Draw& got, const Draw& expected, const std::string& what) {
  EXPECT_EQ(got.token, expected.token) << what;
  EXPECT_EQ(got.logprob, expected.logprob) << what;
  EXPECT_EQ(got.lse, expected.lse) << what;
}

TEST_P(MaskedDraw, IsThatOfARowWithMinusInfinityButForLogProbs) {
  constexpr std::int64_t kRows = 3;
  for (const Case& c : kCases) {
    const auto values = rows_of_logits(kRows, c.vocab);
    const std::vector<Words> masks = make_masks(c.vocab);
    Owned logits(*backend_, kRows, c.vocab, c.vocab + 3);
    logits.set(*backend_, values);
    std::vector<Draw> draws;
    for (int i = 0; i < 70; ++i) {  // more than a launch takes
      draws.push_back(draw_of(c, i % kRows, i));
      const auto mask = static_cast<std::size_t>(i) % (masks.size() + 1);
      draws.back().mask = mask == masks.size() ? nullptr : masks[mask].data();
    }
    sampler().draw(logits.tensor, draws);
    const SamplerSettings settings{
        .temperature = c.temperature, .top_k = c.top_k, .top_p = c.top_p, .min_p = c.min_p};
    for (const Draw& draw : draws) {
      const auto row = std::span(values).subspan(static_cast<std::size_t>(draw.row * c.vocab),
                                                 static_cast<std::size_t>(c.vocab));
      ASSERT_GE(draw.token, 0);
      ASSERT_LT(draw.token, c.vocab);
      const double logit = row[static_cast<std::size_t>(draw.token)];
      ASSERT_TRUE(allows(draw.mask, draw.token)) << draw.token;
      std::vector<float> masked(row.begin(), row.end());
      bool any = false;  // that has a probability
      for (std::int64_t t = 0; t < c.vocab; ++t) {
        float& value = masked[static_cast<std::size_t>(t)];
        if (!allows(draw.mask, t)) value = -INFINITY;
        any = any || value > -INFINITY;
      }
      if (!any) continue;
      EXPECT_NEAR(draw.logprob, logit - log_sum_exp_of(row), 1e-5);
      SamplerScratch scratch;
      const auto host = [&](double uniform) {
        return sample(masked, {}, settings, {}, std::clamp(uniform, 0.0, 1 - 1e-12), scratch);
      };
      EXPECT_TRUE(draw.token == host(draw.uniform) || draw.token == host(draw.uniform - 1e-5) ||
                  draw.token == host(draw.uniform + 1e-5))
          << "vocab " << c.vocab << " top_k " << c.top_k << " top_p " << c.top_p << " got "
          << draw.token << ", expected " << host(draw.uniform);
    }
    for (std::size_t i = 0; i < draws.size(); i += 13) {
      Draw alone = draws[i];
      alone.token = -1;
      sampler().draw(logits.tensor, std::span(&alone, 1));
      expect_equal(alone, draws[i], "alone, vocab " + std::to_string(c.vocab));
    }
  }
}

/// Drawn from a row that was edited on the host, and told of the row as it is.
TEST_P(MaskedDraw, WithEditsIsThatOfARowWithThem) {
  constexpr std::int64_t kRows = 3;
  for (const Case& c : kCases) {
    const auto values = rows_of_logits(kRows, c.vocab);
    std::vector<float> edited = values;
    std::vector<LogitChange> changes;
    for (std::int64_t t = 0; t < c.vocab; t += 1 + c.vocab / 37) {
      const auto token = static_cast<std::int32_t>(t);
      changes.push_back({token, 0.37f * static_cast<float>(t % 5), 1.3f, t % 2 == 0 ? 0.71f : 0});
    }
    const std::vector<std::int32_t> bans = {static_cast<std::int32_t>(c.vocab / 2)};
    for (std::int64_t r = 0; r < kRows; ++r) {
      for (const LogitChange& change : changes) {
        float& value = edited[static_cast<std::size_t>(r * c.vocab + change.token)];
        value = change.of(value);
      }
      edited[static_cast<std::size_t>(r * c.vocab + bans[0])] = -INFINITY;
    }
    Owned logits(*backend_, kRows, c.vocab, c.vocab + 3);
    logits.set(*backend_, values);
    Owned copy(*backend_, kRows, c.vocab, c.vocab + 3);
    copy.set(*backend_, edited);
    std::vector<Draw> draws;
    for (int i = 0; i < 70; ++i) {  // more than a launch takes
      draws.push_back(draw_of(c, i % kRows, i));
      if (i % 4 != 3) draws.back().edits = {changes, bans};
    }
    std::vector<Draw> expected = draws;
    for (Draw& draw : expected) draw.edits = {};
    sampler().draw(logits.tensor, draws);
    std::vector<Draw> of_copy = expected;
    sampler().draw(copy.tensor, of_copy);
    sampler().draw(logits.tensor, expected);
    for (std::size_t i = 0; i < draws.size(); ++i) {
      const std::string what = "vocab " + std::to_string(c.vocab) + " " + std::to_string(i);
      if (draws[i].edits.empty()) {
        expect_equal(draws[i], expected[i], what);
        continue;
      }
      EXPECT_EQ(draws[i].lse, expected[i].lse) << what;
      if (!(of_copy[i].logprob > -INFINITY)) {
        EXPECT_FALSE(draws[i].logprob > -INFINITY) << what;
        continue;
      }
      EXPECT_EQ(draws[i].token, of_copy[i].token) << what;
      TokenQuery query{draws[i].row, draws[i].token};
      sampler().log_probs(logits.tensor, {&query, 1});
      EXPECT_EQ(draws[i].logprob, query.logprob) << what;
    }
  }
}

TEST_P(MaskedDraw, OfAllTokensIsThatWithoutAMaskToTheBit) {
  constexpr int kDraws = 60;
  for (const Case& c : kCases) {
    Owned logits(*backend_, 2, c.vocab);
    logits.set(*backend_, rows_of_logits(2, c.vocab));
    const Words ones(mask_words(static_cast<std::size_t>(c.vocab)), ~0u);
    std::vector<Draw> plain;
    for (int i = 0; i < kDraws; ++i) plain.push_back(draw_of(c, i % 2, i));
    std::vector<Draw> masked = plain;
    for (int i = 0; i < kDraws; ++i) {  // every third one has a mask only in its company
      masked[static_cast<std::size_t>(i)].mask = i % 3 == 0 ? nullptr : ones.data();
    }
    sampler().draw(logits.tensor, plain);
    sampler().draw(logits.tensor, masked);
    for (std::size_t i = 0; i < kDraws; ++i) {
      expect_equal(masked[i], plain[i],
                   "vocab " + std::to_string(c.vocab) + " draw " + std::to_string(i));
    }
    TokenQuery query{0, masked[0].token};
    sampler().log_probs(logits.tensor, {&query, 1});
    EXPECT_EQ(query.logprob, masked[0].logprob);
    EXPECT_EQ(query.lse, masked[0].lse);
  }
}

TEST_P(MaskedDraw, OfNothingGivesNoToken) {
  for (const std::int64_t vocab : {7, 70, 4100}) {
    Owned logits(*backend_, 1, vocab);
    const auto values = rows_of_logits(1, vocab);
    logits.set(*backend_, values);
    Words nothing(mask_words(static_cast<std::size_t>(vocab)));
    nothing.back() = ~0u << vocab % 32;  // past the vocabulary
    Words hopeless(nothing.size());
    hopeless[0] = 1u << 2;  // its logit is -inf
    std::vector<Draw> draws;
    for (const Case& c : kCases) {
      for (const Words* mask : {&nothing, &hopeless}) {
        draws.push_back(draw_of(c, 0, 1));
        draws.back().mask = mask->data();
      }
      draws.push_back(draw_of(c, 0, 1));
    }
    sampler().draw(logits.tensor, draws);
    for (std::size_t i = 0; i < draws.size(); i += 3) {
      EXPECT_EQ(draws[i].token, -1);
      EXPECT_EQ(draws[i].logprob, -INFINITY);
      EXPECT_EQ(draws[i].lse, draws[i + 2].lse);
      EXPECT_TRUE(draws[i + 1].token == -1 || draws[i + 1].token == 2) << draws[i + 1].token;
      EXPECT_EQ(draws[i + 1].logprob, -INFINITY);
      EXPECT_GE(draws[i + 2].token, 0);
    }
  }
}

TEST_P(MaskedDraw, OfNothingLeavesATokenThatAPassCanTake) {
  constexpr std::int64_t kVocab = 50;
  constexpr std::int64_t kDim = 16;
  Owned logits(*backend_, 1, kVocab);
  logits.set(*backend_, rows_of_logits(1, kVocab));
  const Words nothing(mask_words(kVocab));
  Draw draw;
  draw.mask = nothing.data();
  sampler().draw(logits.tensor, {&draw, 1});
  ASSERT_EQ(draw.token, -1);
  if (!on_cuda()) {
    EXPECT_EQ(static_cast<test::SamplingBackend&>(*backend_).host_sampler().kept(0), 0);
    return;
  }
  const auto weight = backend_->random_weight(kVocab, kDim, DType::kBF16, 1);
  Owned out(*backend_, 2, kDim);
  const std::vector<std::int32_t> tokens{PassInputs::token_of_draw(0), 0};
  backend_->embed(out.tensor, tokens, *weight);
  const std::vector<float> rows = out.get(*backend_);
  EXPECT_EQ(
      testing_support::first_difference(std::span(rows).first(kDim), std::span(rows).last(kDim)),
      -1);
}

TEST_P(MaskedDraw, FollowsTheLikelyTokensThatAreLeftHoweverUnlikely) {
  constexpr std::int64_t kVocab = 9000;  // three chunks
  std::vector<float> values(kVocab, 0.0f);
  values[10] = 3000;  // next to it, all others weigh nothing
  Owned logits(*backend_, 1, kVocab);
  logits.set(*backend_, values);
  Words mask(mask_words(kVocab));
  const std::vector<std::int32_t> expected{11, 267, 4095, 4096, 8999};
  for (const std::int32_t token : expected) allow(mask, token);
  for (const double top_p : {1.0, 0.99}) {
    std::vector<Draw> draws(expected.size() + 1);
    for (std::size_t i = 0; i < expected.size(); ++i) {
      draws[i].temperature = 1;
      draws[i].top_p = top_p;
      draws[i].uniform = (static_cast<double>(i) + 0.5) / static_cast<double>(expected.size());
    }
    for (Draw& draw : draws) draw.mask = mask.data();
    sampler().draw(logits.tensor, draws);
    EXPECT_EQ(draws.back().token, expected.front());  // temperature 0: the lowest of equal ones
    for (std::size_t i = 0; i < expected.size(); ++i) {
      EXPECT_EQ(draws[i].token, expected[i]);
      EXPECT_EQ(draws[i].logprob, -3000);
      EXPECT_EQ(draws[i].lse, 3000);
    }
  }
}

/// Two lots of draws under way; the rows are written over once the second has begun.
TEST_P(MaskedDraw, BringsRowsAsTheyWereWhenItBegan) {
  constexpr std::int64_t kRows = 3;
  constexpr std::int64_t kVocab = 5000;
  Owned logits(*backend_, kRows, kVocab, kVocab + 5);
  const std::vector<float> values = rows_of_logits(kRows, kVocab);
  std::vector<std::vector<float>> rows(5, std::vector<float>(kVocab));
  std::vector<Draw> first;
  std::vector<Draw> second;
  logits.set(*backend_, values);
  for (int i = 0; i < 7; ++i) {
    Draw& draw = (i < 4 ? first : second).emplace_back(draw_of({kVocab, 1.0}, i % 3, i));
    draw.wants_row = i != 1;
  }
  sampler().begin_draw(logits.tensor, first);
  sampler().begin_draw(logits.tensor, second);
  logits.set(*backend_, std::vector<float>(values.size(), 0.0f));
  // (Of the third one nobody reads the row.)
  first[0].values = rows[0];
  first[3].values = rows[1];
  sampler().finish_draw(first);
  for (std::size_t i = 0; i < 3; ++i) second[i].values = rows[2 + i];
  sampler().finish_draw(second);
  const std::int32_t from[] = {0, 0, 1, 2, 0};
  for (std::size_t i = 0; i < rows.size(); ++i) {
    EXPECT_EQ(
        testing_support::first_difference(
            rows[i], std::span(values).subspan(static_cast<std::size_t>(from[i] * kVocab), kVocab)),
        -1)
        << i;
  }
}

TEST_P(MaskedDraw, ReadsMasksBeforeItHasBegun) {
  constexpr std::int64_t kVocab = 5000;
  constexpr int kDraws = 40;
  Owned logits(*backend_, 1, kVocab);
  logits.set(*backend_, rows_of_logits(1, kVocab));
  Random random(2);
  // One token a draw, another one each time; the masks' memory is the same.
  std::vector<Words> masks(kDraws, Words(mask_words(kVocab)));
  struct Begun {
    std::vector<Draw> draws;
    std::vector<std::int32_t> expected;
  };
  const auto begin = [&] {
    Begun begun;
    for (Words& mask : masks) {
      mask.assign(mask.size(), 0);
      const auto token = static_cast<std::int32_t>(random.in(3, kVocab - 1));
      allow(mask, token);
      begun.expected.push_back(token);
      begun.draws.push_back(draw_of({kVocab, 1.0}, 0, token));
      begun.draws.back().mask = mask.data();
    }
    begun.draws.resize(static_cast<std::size_t>(random.in(1, kDraws)));
    sampler().begin_draw(logits.tensor, begun.draws);
    return begun;
  };
  const auto finish = [&](Begun begun) {
    sampler().finish_draw(begun.draws);
    for (std::size_t i = 0; i < begun.draws.size(); ++i) {
      ASSERT_EQ(begun.draws[i].token, begun.expected[i]);
    }
  };
  for (int round = 0; round < 50; ++round) {
    Begun first = begin();
    Begun second = begin();
    finish(std::move(first));
    if (round % 3 == 0) {
      sampler().forget_draws();
    } else {
      finish(std::move(second));
    }
  }
}

}  // namespace
}  // namespace dendrite
