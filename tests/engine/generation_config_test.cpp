// What a model's generation_config.json says holds in every call.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/engine_support.h"
#include "support/temporary_folder.h"

namespace dendrite {
namespace {

using test::load;

class GenerationConfigTest : public ::testing::TestWithParam<const char*> {
 protected:
  /// The tiny model, whose tokens are bytes, with this in its generation_config.json.
  Engine engine_with(const nlohmann::json& generation) {
    const std::string wanted = GetParam();
    const std::filesystem::path folder = folder_.path() / std::to_string(count_++);
    std::filesystem::copy(test::model_path("qwen3"), folder,
                          std::filesystem::copy_options::recursive);
    std::filesystem::remove(folder / "generation_config.json");
    std::ofstream(folder / "generation_config.json") << generation;
    return load(folder.string(), {}, wanted == "sampling" && test::on_cuda() ? "cuda" : wanted);
  }

  const TemporaryFolder folder_;
  int count_ = 0;
};

INSTANTIATE_TEST_SUITE_P(Devices, GenerationConfigTest, ::testing::Values("", "sampling"));

TEST_P(GenerationConfigTest, StopStringsEndBranchesAsItsEndOfSequenceDoes) {
  const Engine engine = engine_with({{"eos_token_id", 2}, {"stop_strings", {"c;", "zz"}}});
  EXPECT_TRUE(engine.info().warnings.empty());
  Session session(engine);
  Branch root = session.prefill("A text: ");
  DecodeParams params{.max_tokens = 20, .constraint = Constraint::regex("abc;d")};
  Branch branch = root.fork();
  const Generation got = session.decode(branch, params);
  EXPECT_EQ(got.text, "ab");
  EXPECT_EQ(got.finish, Finish::kStopInside);
  params.stop = {"b"};  // beside the caller's own
  branch = root.fork();
  EXPECT_EQ(session.decode(branch, params).text, "a");
  params.stop.clear();
  params.ignore_eos = true;
  branch = root.fork();
  EXPECT_EQ(session.decode(branch, params).text, "abc;d");
}

TEST_P(GenerationConfigTest, SuppressedTokensAreNeverDrawn) {
  const Engine engine =
      engine_with({{"eos_token_id", 2}, {"suppress_tokens", {3}}, {"bad_words_ids", {{4}}}});
  Session session(engine);
  Branch root = session.prefill("A text: ");
  DecodeParams params{.max_tokens = 10, .temperature = 1, .ignore_eos = true};
  for (const Token id : {3, 4}) params.logit_bias.emplace_back(id, 1000.0f);
  std::vector<Branch> branches = root.fork(4);
  for (const Generation& got : session.decode(branches, params)) {
    EXPECT_EQ(got.ids.size(), 10u);
    for (const Token id : got.ids) EXPECT_TRUE(id != 3 && id != 4) << id;
  }
}

TEST_P(GenerationConfigTest, WhatNothingObeysIsWarnedOfOnce) {
  const Engine engine = engine_with({{"num_beams", 4}, {"no_repeat_ngram_size", 3}});
  ASSERT_EQ(engine.info().warnings.size(), 1u);
  EXPECT_TRUE(engine.info().warnings.front().ends_with(
      "generation_config.json: is not obeyed in num_beams 4, no_repeat_ngram_size 3"))
      << engine.info().warnings.front();
}

}  // namespace
}  // namespace dendrite
