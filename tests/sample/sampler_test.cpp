#include "sample/sampler.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <numeric>
#include <random>

#include "core/rng.h"
#include "dendrite/error.h"
#include "sample/logit_changes.h"

namespace dendrite {
namespace {

constexpr float kInf = std::numeric_limits<float>::infinity();

/// The definition, word by word: probabilities after all settings, by vocabulary id.
std::vector<double> reference(std::span<const float> raw, std::span<const Token> history,
                              const SamplerSettings& s) {
  std::vector<float> logits(raw.begin(), raw.end());
  for (const auto& [id, bias] : s.logit_bias) logits[static_cast<std::size_t>(id)] += bias;
  for (std::size_t id = 0; id < logits.size(); ++id) {
    if (std::find(history.begin(), history.end(), static_cast<Token>(id)) == history.end())
      continue;
    const auto penalty = static_cast<float>(s.repetition_penalty);
    logits[id] = logits[id] < 0 ? logits[id] * penalty : logits[id] / penalty;
  }
  const auto vocab = logits.size();
  std::vector<std::size_t> order(vocab);
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](std::size_t a, std::size_t b) { return logits[a] > logits[b]; });
  std::vector<double> p(vocab, 0.0);
  if (s.temperature == 0) {
    p[order[0]] = 1;
    return p;
  }
  const double max = logits[order[0]];
  for (std::size_t i = 0; i < vocab; ++i) p[i] = std::exp((logits[i] - max) / s.temperature);
  const auto normalize = [&p] {
    const double sum = std::accumulate(p.begin(), p.end(), 0.0);
    for (double& value : p) value /= sum;
  };
  normalize();
  if (s.top_k > 0) {
    for (std::size_t i = static_cast<std::size_t>(s.top_k); i < vocab; ++i) p[order[i]] = 0;
    normalize();
  }
  if (s.top_p < 1) {
    double mass = 0;
    for (std::size_t i = 0; i < vocab; ++i) {
      const double own = p[order[i]];
      if (i > 0 && mass >= s.top_p) p[order[i]] = 0;
      mass += own;
    }
    normalize();
  }
  if (s.min_p > 0) {
    const double largest = *std::max_element(p.begin(), p.end());
    for (double& value : p) {
      if (value < s.min_p * largest) value = 0;
    }
    normalize();
  }
  return p;
}

/// After a text of which all is generated.
Token draw_with(std::span<const float> logits, Mask mask, const SamplerSettings& settings,
                double uniform, std::span<const Token> text, SamplerScratch& scratch) {
  LogitChanges changes(settings);
  for (const Token token : text) changes.add(token, true);
  std::vector<Token> bans;
  add_bans(settings, text, bans);
  return sample(logits, {changes.all(), bans}, settings, mask, uniform, scratch);
}
Token draw_masked(std::span<const float> logits, Mask mask, const SamplerSettings& settings,
                  double uniform, std::span<const Token> history = {}) {
  SamplerScratch scratch;
  return draw_with(logits, mask, settings, uniform, history, scratch);
}
Token draw(std::span<const float> logits, const SamplerSettings& settings, double uniform,
           std::span<const Token> history = {}) {
  return draw_masked(logits, {}, settings, uniform, history);
}

std::vector<float> random_logits(std::mt19937& random, std::size_t vocab, float deviation) {
  std::normal_distribution<float> normal(0.0f, deviation);
  std::vector<float> out(vocab);
  for (float& value : out) value = normal(random);
  return out;
}

TEST(Sampler, GreedyTakesTheLowestOfEqualIds) {
  const std::vector<float> logits{1, 3, 2, 3, 3};
  EXPECT_EQ(draw(logits, {.temperature = 0}, 0.99), 1);
  EXPECT_EQ(draw(logits, {.temperature = 0, .logit_bias = {{3, 0.5f}}}, 0.99), 3);
  const std::vector<float> same(100, -2.5f);
  EXPECT_EQ(draw(same, {.temperature = 0}, 0.5), 0);
}

TEST(Sampler, DrawsByInverseCdfInVocabularyOrder) {
  // exp: 1, 2, 1 of 4
  const std::vector<float> logits{0.0f, std::log(2.0f), 0.0f};
  const SamplerSettings settings{.temperature = 1};
  EXPECT_EQ(draw(logits, settings, 0.0), 0);
  EXPECT_EQ(draw(logits, settings, 0.2499), 0);
  EXPECT_EQ(draw(logits, settings, 0.2501), 1);
  EXPECT_EQ(draw(logits, settings, 0.7499), 1);
  EXPECT_EQ(draw(logits, settings, 0.7501), 2);
  EXPECT_EQ(draw(logits, settings, 0x1.fffffffffffffp-1), 2);
}

TEST(Sampler, KeepsVocabularyOrderWhereFiltersKeepAll) {
  const std::vector<float> logits{0.0f, std::log(3.0f)};  // exp: 1, 3 of 4
  EXPECT_EQ(draw(logits, {.temperature = 1, .top_p = 0.99}, 0.2), 0);
  EXPECT_EQ(draw(logits, {.temperature = 1, .top_p = 0.99}, 0.3), 1);
}

TEST(Sampler, FollowsItsDefinitionForRandomSettings) {
  std::mt19937 random(5);
  const auto chance = [&](double p) { return std::uniform_real_distribution<>(0, 1)(random) < p; };
  const auto real = [&](double a, double b) {
    return std::uniform_real_distribution<>(a, b)(random);
  };
  for (int round = 0; round < 600; ++round) {
    const std::size_t vocab = 2 + random() % 60;
    std::vector<float> logits = random_logits(random, vocab, 2.0f);
    if (chance(0.3)) logits[random() % vocab] = -kInf;
    if (chance(0.3)) logits[random() % vocab] = logits[random() % vocab];  // a tie
    SamplerSettings s;
    s.temperature = chance(0.1) ? 0 : real(0.2, 2.0);
    if (chance(0.5)) s.top_k = static_cast<std::int64_t>(random() % (vocab + 3));
    if (chance(0.5)) s.top_p = real(0.05, 1.0);
    if (chance(0.5)) s.min_p = real(0.0, 0.5);
    std::vector<Token> history;
    if (chance(0.5)) {
      s.repetition_penalty = real(0.5, 2.0);
      for (int i = 0; i < 10; ++i) history.push_back(static_cast<Token>(random() % vocab));
    }
    if (chance(0.5)) {
      s.logit_bias = {{static_cast<Token>(random() % vocab), static_cast<float>(real(-3, 3))},
                      {static_cast<Token>(random() % vocab), -kInf}};
    }
    const std::vector<double> p = reference(logits, history, s);
    // Every token's share of [0, 1) is where the definition puts it.
    double begin = 0;
    for (std::size_t id = 0; id < vocab; ++id) {
      if (p[id] > 1e-9) {
        const double inside = begin + p[id] / 2;
        ASSERT_EQ(draw(logits, s, inside, history), static_cast<Token>(id)) << "round " << round;
        if (s.temperature > 0 && p[id] > 1e-6) {
          ASSERT_EQ(draw(logits, s, begin + p[id] * 1e-3, history), static_cast<Token>(id));
          ASSERT_EQ(draw(logits, s, begin + p[id] * 0.999, history), static_cast<Token>(id));
        }
      }
      begin += p[id];
    }
  }
}

TEST(Sampler, FrequenciesAreTheProbabilities) {
  std::mt19937 random(9);
  const std::vector<float> logits = random_logits(random, 12, 1.0f);
  for (const double temperature : {0.5, 1.0, 1.7}) {
    const SamplerSettings settings{.temperature = temperature};
    const std::vector<double> p = reference(logits, {}, settings);
    constexpr int kDraws = 40000;
    std::vector<int> counts(logits.size());
    for (int i = 0; i < kDraws; ++i) {
      // As the engine draws: stream by stream, position by position.
      const double uniform =
          uniform_at(17, static_cast<std::uint64_t>(i / 200), static_cast<std::uint64_t>(i % 200));
      ++counts[static_cast<std::size_t>(draw(logits, settings, uniform))];
    }
    double chi_square = 0;
    for (std::size_t id = 0; id < p.size(); ++id) {
      const double expected = p[id] * kDraws;
      chi_square += (counts[id] - expected) * (counts[id] - expected) / expected;
    }
    EXPECT_LT(chi_square, 31.3);  // 11 degrees of freedom: 99.9 %
    EXPECT_GT(chi_square, 1.5);   // 0.1 %: nor suspiciously even
  }
}

TEST(Sampler, UniformDrawsAreUniformAndIndependentAcrossStreamsAndPositions) {
  std::vector<int> counts(64);
  double correlation = 0;
  for (std::uint64_t stream = 0; stream < 128; ++stream) {
    for (std::uint64_t position = 0; position < 128; ++position) {
      const double u = uniform_at(3, stream, position);
      ASSERT_GE(u, 0.0);
      ASSERT_LT(u, 1.0);
      ++counts[static_cast<std::size_t>(u * 64)];
      correlation += (u - 0.5) * (uniform_at(3, stream + 1, position) - 0.5);
      correlation += (u - 0.5) * (uniform_at(3, stream, position + 1) - 0.5);
    }
  }
  double chi_square = 0;
  for (const int count : counts) chi_square += (count - 256.0) * (count - 256.0) / 256.0;
  EXPECT_LT(chi_square, 103.4);  // 63 degrees of freedom: 99.9 %
  EXPECT_LT(std::abs(correlation / (128 * 128 * 2) * 12), 0.03);
}

TEST(Sampler, PhiloxGivesThePublishedVectors) {
  // Random123's known answers for philox4x32-10.
  const std::array<std::uint32_t, 4> zero = philox4x32({0, 0, 0, 0}, {0, 0});
  EXPECT_EQ(zero,
            (std::array<std::uint32_t, 4>{0x6627e8d5u, 0xe169c58du, 0xbc57ac4cu, 0x9b00dbd8u}));
  constexpr std::uint32_t kOnes = 0xffffffffu;
  const std::array<std::uint32_t, 4> ones =
      philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes});
  EXPECT_EQ(ones,
            (std::array<std::uint32_t, 4>{0x408f276du, 0x41c83b0eu, 0xa20bc7c6u, 0x6d5451fdu}));
  const std::array<std::uint32_t, 4> pi =
      philox4x32({0x243f6a88u, 0x85a308d3u, 0x13198a2eu, 0x03707344u}, {0xa4093822u, 0x299f31d0u});
  EXPECT_EQ(pi, (std::array<std::uint32_t, 4>{0xd16cfe09u, 0x94fdccebu, 0x5001e420u, 0x24126ea1u}));
}

TEST(Sampler, NeverDrawsNanOrMinusInfinity) {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  const std::vector<float> logits{nan, -kInf, 1.0f, nan, 0.0f, -kInf};
  for (int i = 0; i < 100; ++i) {
    const Token token = draw(logits, {.temperature = 1, .top_p = 0.9999}, i / 100.0);
    EXPECT_TRUE(token == 2 || token == 4) << token;
  }
  EXPECT_EQ(draw(logits, {.temperature = 0}, 0), 2);
}

TEST(Sampler, PenaltiesCountGeneratedTokensAlone) {
  const SamplerSettings s{.presence_penalty = 0.5, .frequency_penalty = 0.25};
  LogitChanges changes(s);
  changes.add(1, false);  // of the prompt
  for (const Token token : {2, 2, 3, 2}) changes.add(token, true);
  EXPECT_EQ(changes.tokens(), 5u);
  const std::vector<float> logits{0, 1.0f, 2.2f, 1.7f};
  std::vector<float> got = logits;
  for (const LogitChange& change : changes.all()) {
    float& value = got[static_cast<std::size_t>(change.token)];
    value = change.of(value);
  }
  EXPECT_EQ(got, (std::vector<float>{0, 1.0f, 2.2f - 1.25f, 1.7f - 0.75f}));
  SamplerScratch scratch;
  EXPECT_EQ(sample(logits, {changes.all(), {}}, s, {}, 0, scratch), 1);
  const std::vector<Token> bans{1, 2};
  EXPECT_EQ(sample(logits, {changes.all(), bans}, s, {}, 0, scratch), 3);
}

TEST(Sampler, BadWordsForbidTheirLastTokens) {
  const SamplerSettings s{.logit_bias = {{9, -kInf}, {8, 1}},
                          .bad_words = {{1, 2, 3}, {2, 4}, {5}}};
  const auto bans_after = [&](std::vector<Token> text) {
    std::vector<Token> bans;
    add_bans(s, text, bans);
    for (Token token = 0; token < 10; ++token) {
      EXPECT_EQ(is_banned(s, text, token),
                std::find(bans.begin(), bans.end(), token) != bans.end());
    }
    return bans;
  };
  EXPECT_EQ(bans_after({}), (std::vector<Token>{9, 5}));
  EXPECT_EQ(bans_after({2}), (std::vector<Token>{9, 4, 5}));
  EXPECT_EQ(bans_after({0, 1, 2}), (std::vector<Token>{9, 3, 4, 5}));
  EXPECT_EQ(bans_after({1, 2, 0}), (std::vector<Token>{9, 5}));
}

TEST(Sampler, IsAPureFunctionWhateverItsScratchHolds) {
  std::mt19937 random(2);
  SamplerScratch used;
  for (int round = 0; round < 200; ++round) {
    const std::vector<float> logits = random_logits(random, 5 + random() % 300, 3.0f);
    const SamplerSettings s{.temperature = 0.7,
                            .top_k = static_cast<std::int64_t>(random() % 40),
                            .top_p = 0.8,
                            .min_p = 0.01,
                            .repetition_penalty = 1.1,
                            .logit_bias = {{2, 1.0f}}};
    const std::vector<Token> history{0, 1, 2, 1};
    const double u = static_cast<double>(random() % 1000) / 1000;
    EXPECT_EQ(draw_with(logits, {}, s, u, history, used), draw(logits, s, u, history));
  }
}

SamplerSettings random_settings(std::mt19937& random, std::size_t vocab) {
  const auto real = [&](double a, double b) {
    return std::uniform_real_distribution<>(a, b)(random);
  };
  SamplerSettings s;
  s.temperature = random() % 5 == 0 ? 0 : real(0.1, 2.0);
  if (random() % 2 == 0) s.top_k = static_cast<std::int64_t>(random() % (vocab + 3));
  if (random() % 2 == 0) s.top_p = real(0.05, 1.0);
  if (random() % 2 == 0) s.min_p = real(0.0, 0.5);
  if (random() % 2 == 0) s.repetition_penalty = real(0.5, 2.0);
  if (random() % 2 == 0) s.logit_bias = {{static_cast<Token>(random() % vocab), 3.0f}};
  return s;
}

TEST(Sampler, AMaskedTokenIsOneWithLogitMinusInfinity) {
  std::mt19937 random(11);
  for (int round = 0; round < 3000; ++round) {
    const std::size_t vocab = 1 + random() % 150;
    std::vector<float> logits = random_logits(random, vocab, 2.0f);
    for (float& value : logits) value = std::round(value * 4) / 4;  // ties
    std::vector<std::uint32_t> mask(mask_words(vocab));
    for (std::uint32_t& word : mask) word = random() & (round % 3 == 0 ? random() : ~0u);
    const std::size_t some = random() % vocab;
    mask[some / 32] |= 1u << some % 32;
    std::vector<float> masked = logits;
    for (std::size_t id = 0; id < vocab; ++id) {
      if ((mask[id / 32] >> id % 32 & 1u) == 0) masked[id] = -kInf;
    }
    const std::vector<Token> history{0, static_cast<Token>(vocab / 2), 0};
    const SamplerSettings s = random_settings(random, vocab);
    const std::vector<double> p = reference(masked, history, s);
    double begin = 0;
    for (std::size_t id = 0; id < vocab; ++id) {
      if (p[id] > 1e-9) {
        ASSERT_EQ(draw_masked(logits, mask, s, begin + p[id] / 2, history), static_cast<Token>(id))
            << "round " << round;
      }
      begin += p[id];
    }
    for (const double u : {0.0, 0.3, 0.999999, 0x1.fffffffffffffp-1}) {
      ASSERT_EQ(draw_masked(logits, mask, s, u, history), draw(masked, s, u, history));
    }
  }
}

TEST(Sampler, AMaskOfOnesChangesNothing) {
  std::mt19937 random(12);
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (int round = 0; round < 1000; ++round) {
    const std::size_t vocab = 1 + random() % 100;
    std::vector<float> logits = random_logits(random, vocab, 3.0f);
    if (round % 4 == 0) logits[random() % vocab] = nan;
    if (round % 8 == 0) logits.assign(vocab, round % 16 == 0 ? nan : -kInf);
    if (round % 32 == 0) logits.back() = -kInf;
    const std::vector<std::uint32_t> ones(mask_words(vocab), ~0u);
    const SamplerSettings s = random_settings(random, vocab);
    const double u = static_cast<double>(random() % 1000) / 1000;
    ASSERT_EQ(draw_masked(logits, ones, s, u), draw(logits, s, u)) << "round " << round;
  }
}

TEST(Sampler, DrawsNothingThatAMaskForbids) {
  const std::vector<float> logits{5, -kInf, 3, std::numeric_limits<float>::quiet_NaN(), 2};
  const auto only = [](Token id) { return std::vector<std::uint32_t>{1u << id}; };
  const std::vector<std::uint32_t> nothing{0u};
  const std::vector<std::uint32_t> outside{~0x1fu};
  for (const double temperature : {0.0, 0.5, 2.0}) {
    const SamplerSettings s{.temperature = temperature, .top_k = 2, .top_p = 0.9, .min_p = 0.1};
    for (const double u : {0.0, 0.5, 0.99}) {
      for (const Token id : {0, 2, 4}) EXPECT_EQ(draw_masked(logits, only(id), s, u), id);
      for (const Token id : {1, 3}) EXPECT_EQ(draw_masked(logits, only(id), s, u), -1);
      EXPECT_EQ(draw_masked(logits, nothing, s, u), -1);
      EXPECT_EQ(draw_masked(logits, outside, s, u), -1);
    }
  }
  const std::vector<std::uint32_t> hopeless{1u << 1 | 1u << 3};
  EXPECT_EQ(draw_masked(logits, hopeless, {.temperature = 1}, 0.5), -1);
  // A bias does not bring a token back.
  const SamplerSettings biased{.temperature = 1, .logit_bias = {{0, 100.0f}}};
  EXPECT_EQ(draw_masked(logits, only(4), biased, 0.5), 4);
}

TEST(Sampler, DrawsNothingThatABiasBans) {
  const std::vector<float> logits{5, 4, 3, 2};
  for (const double temperature : {0.0, 1.0}) {
    SamplerSettings s{.temperature = temperature, .top_k = 2, .top_p = 0.9, .min_p = 0.01};
    s.logit_bias = {{0, -kInf}, {1, -kInf}, {3, -kInf}};
    s.repetition_penalty = 3;
    EXPECT_EQ(draw(logits, s, 0.5, std::vector<Token>{0, 1, 2, 3}), 2);
    EXPECT_EQ(draw_masked(logits, std::vector<std::uint32_t>{1u << 0 | 1u << 3}, s, 0.5), -1);
    s.logit_bias.emplace_back(2, -kInf);
    s.logit_bias.emplace_back(2, 100.0f);  // does not bring it back
    EXPECT_EQ(draw(logits, s, 0.5), -1);
  }
}

TEST(Sampler, RefusesParametersOutOfRangeByName) {
  const auto error = [](const SamplerSettings& settings) -> std::string {
    try {
      check(settings, 100);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  const double nan = std::numeric_limits<double>::quiet_NaN();
  EXPECT_EQ(error({}), "");
  EXPECT_EQ(error({.temperature = 5,
                   .top_k = 0,
                   .top_p = 1,
                   .min_p = 1,
                   .repetition_penalty = 0.1,
                   .logit_bias = {{99, -kInf}}}),
            "");
  const std::pair<SamplerSettings, const char*> bad[] = {
      {{.temperature = -0.1}, "temperature is -0.1"},
      {{.temperature = nan}, "temperature is nan"},
      {{.temperature = HUGE_VAL}, "temperature is inf"},
      {{.top_k = -1}, "top_k is -1"},
      {{.top_p = 0}, "top_p is 0"},
      {{.top_p = 1.5}, "top_p is 1.5"},
      {{.top_p = nan}, "top_p is nan"},
      {{.min_p = -0.5}, "min_p is -0.5"},
      {{.min_p = 1.1}, "min_p is 1.1"},
      {{.repetition_penalty = 0}, "repetition_penalty is 0"},
      {{.repetition_penalty = nan}, "repetition_penalty is nan"},
      {{.logit_bias = {{100, 1.0f}}}, "logit_bias id is 100"},
      {{.logit_bias = {{-1, 1.0f}}}, "logit_bias id is -1"},
      {{.logit_bias = {{5, kInf}}}, "logit_bias value is inf"},
      {{.logit_bias = {{5, std::numeric_limits<float>::quiet_NaN()}}}, "logit_bias value is nan"},
  };
  for (const auto& [settings, part] : bad) {
    EXPECT_NE(error(settings).find(part), std::string::npos) << part << ": " << error(settings);
    EXPECT_NE(error(settings).find("expected"), std::string::npos) << part;
  }
}

}  // namespace
}  // namespace dendrite
