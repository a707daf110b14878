#include "model/rope.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "../io/test_files.h"
#include "core/parallel.h"
#include "model/config_reader.h"

namespace dendrite {
namespace {

/// Frequencies as transformers 5.23 computes them, the first, a middle and the last one of 64 (a
/// head of 128).
struct Golden {
  const char* name;
  RopeConfig rope;
  float first, middle, last;  // pairs 0, 32, 63
  float scaling;
};

void expect_close(float got, float expected, const std::string& what) {
  EXPECT_NEAR(got, expected, 5e-7 * std::abs(expected)) << what;
}

TEST(Rope, FrequenciesEqualTheReference) {
  const Golden goldens[] = {
      {"default", {.theta = 10000.0}, 1.0f, 0.01f, 1.1547819e-04f, 1.0f},
      {"default 1e6", {.theta = 1e6}, 1.0f, 0.001f, 1.2409378e-06f, 1.0f},
      {"linear",
       {.type = RopeType::kLinear, .factor = 2.5},
       0.4f,
       0.0039999997f,
       4.619128e-05f,
       1.0f},
      {"dynamic",
       {.type = RopeType::kDynamic, .factor = 2.3, .max_positions = 2048},
       1.0f,
       0.01f,
       1.1547819e-04f,
       1.0f},
      {"llama3",
       {.type = RopeType::kLlama3, .theta = 5e5, .factor = 8.0, .original_positions = 8192},
       1.0f,
       5.24846e-04f,
       3.068926e-07f,
       1.0f},
      {"yarn",
       {.type = RopeType::kYarn, .theta = 1e6, .factor = 4.0, .original_positions = 32768},
       1.0f,
       6.0294115e-04f,
       3.1023444e-07f,
       1.1386294f},
      {"yarn, mscales",
       {.type = RopeType::kYarn,
        .factor = 40.0,
        .original_positions = 4096,
        .mscale = 1.0,
        .mscale_all_dim = 0.5},
       1.0f,
       0.0055000004f,
       2.8869547e-06f,
       1.155722f},
      {"yarn, no ramp",
       {.type = RopeType::kYarn, .factor = 2.0, .original_positions = 6},
       1.0f,
       0.005f,
       5.7739097e-05f,
       1.0693147f},
      {"yarn, not truncated",
       {.type = RopeType::kYarn,
        .factor = 32.0,
        .original_positions = 4096,
        .attention_factor = 1.25,
        .beta_fast = 16.0,
        .beta_slow = 2.0,
        .truncate = false},
       1.0f,
       0.005817091f,
       3.6086935e-06f,
       1.25f},
  };
  for (const Golden& golden : goldens) {
    const std::vector<float> freqs = inv_freq(golden.rope, 128);
    ASSERT_EQ(freqs.size(), 64u);
    expect_close(freqs[0], golden.first, golden.name);
    expect_close(freqs[32], golden.middle, golden.name);
    expect_close(freqs[63], golden.last, golden.name);
    EXPECT_EQ(attention_scaling(golden.rope), golden.scaling) << golden.name;
  }
}

// Each case goes the whole way: through a config.json in text.
TEST(Rope, EqualsEveryCaseOfTheGoldenFile) {
  const auto file = test::data_folder() / "rope.json";
  if (!std::filesystem::exists(file)) GTEST_SKIP() << file << " is missing";
  const auto goldens = nlohmann::json::parse(std::ifstream(file));
  int checked = 0;
  for (const auto& golden : goldens.at("cases")) {
    const std::string name = golden.at("name");
    nlohmann::json config = {{"model_type", "llama"},
                             {"hidden_size", 4 * golden.at("head_dim").get<int>()},
                             {"num_attention_heads", 4},
                             {"head_dim", golden.at("head_dim")},
                             {"max_position_embeddings", golden.at("max_position_embeddings")},
                             {"rope_parameters", golden.at("rope_parameters")}};
    const DecoderConfig decoder = parse_config(config.dump(), std::nullopt, "");
    const std::vector<float> freqs = inv_freq(decoder.rope, decoder.rotary_dim);
    const auto expected = golden.at("inv_freq").get<std::vector<double>>();
    ASSERT_EQ(freqs.size(), expected.size()) << name;
    for (std::size_t i = 0; i < freqs.size(); ++i)
      expect_close(freqs[i], static_cast<float>(expected[i]), name);
    EXPECT_EQ(attention_scaling(decoder.rope), golden.at("attention_scaling").get<float>()) << name;
    ++checked;
  }
  EXPECT_GT(checked, 20);
}

TEST(Rope, AnglesAreProductsInSinglePrecision) {
  const std::vector<float> freqs{1.0f, 0.3f};
  const std::vector<std::int64_t> positions{0, 7, 100'003, 16'777'217};
  std::vector<float> table(positions.size() * 4);
  fill_cos_sin(freqs, 2.0f, positions, table.data());
  EXPECT_EQ((std::vector<float>(table.begin(), table.begin() + 4)),
            (std::vector<float>{2, 2, 0, 0}));
  for (std::size_t row = 0; row < positions.size(); ++row) {
    for (std::size_t i = 0; i < 2; ++i) {
      const float angle =
          static_cast<float>(positions[row]) * freqs[i];  // 100'003 * 0.3f is inexact
      EXPECT_NEAR(table[row * 4 + i], 2.0 * std::cos(static_cast<double>(angle)), 3e-7);
      EXPECT_NEAR(table[row * 4 + 2 + i], 2.0 * std::sin(static_cast<double>(angle)), 3e-7);
    }
  }
}

TEST(Rope, TheTableHoldsTheSameBits) {
  const std::vector<float> freqs{1.0f, 0.3f, 0.0007f};
  RopeTable table(freqs, 1.5f);
  for (const std::vector<std::int64_t>& positions : std::vector<std::vector<std::int64_t>>{
           {5, 5, 255, 256, 4}, {100'003, 0, 511}, {5, 100'004, 256}}) {
    std::vector<float> expected(positions.size() * 6);
    std::vector<float> got(expected.size());
    fill_cos_sin(freqs, 1.5f, positions, expected.data());
    table.fill(positions, got.data());
    EXPECT_EQ(got, expected);
  }
}

TEST(Rope, ATableMadeAheadHoldsTheSameBits) {
  const std::vector<float> freqs{1.0f, 0.3f};
  RopeTable lazy(freqs, 1.0f);
  RopeTable ahead(freqs, 1.0f);
  const std::span<const float> first = lazy.block(1);
  ahead.prepare(3 * RopeTable::kBlock - 1, ThreadPool(3));
  EXPECT_TRUE(std::ranges::equal(ahead.block(1), first));
  EXPECT_TRUE(std::ranges::equal(ahead.block(2), lazy.block(2)));
  EXPECT_TRUE(std::ranges::equal(ahead.block(7), lazy.block(7)));  // not made ahead
}

TEST(Rope, OnlyDynamicHasALimit) {
  for (const RopeType type :
       {RopeType::kDefault, RopeType::kLinear, RopeType::kYarn, RopeType::kLlama3}) {
    EXPECT_EQ((RopeConfig{.type = type, .max_positions = 64}.position_limit()), std::nullopt);
  }
  EXPECT_EQ((RopeConfig{.type = RopeType::kDynamic, .max_positions = 64}.position_limit()), 64);
}

}  // namespace
}  // namespace dendrite
