// What a model's generation_config.json says: where to stop, what to draw with.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "../io/test_files.h"
#include "model/config_reader.h"
#include "model/weights.h"

namespace dendrite {
namespace {

using Json = nlohmann::json;

DecoderConfig parse(const Json& config, const std::optional<Json>& generation = std::nullopt) {
  const std::optional<std::string> text =
      generation ? std::optional(generation->dump()) : std::nullopt;
  return parse_config(config.dump(), text, "folder");
}

TEST(GenerationConfig, SaysWhereToStop) {
  const Json config = {{"model_type", "llama"}, {"eos_token_id", 7}, {"bos_token_id", 5}};
  EXPECT_EQ(parse(config).eos, std::vector<std::int64_t>{7});
  EXPECT_EQ(parse(config, Json{{"temperature", 0.5}}).eos, std::vector<std::int64_t>{7});
  const DecoderConfig list = parse(config, Json{{"eos_token_id", {3, 4, 3}}, {"bos_token_id", 6}});
  EXPECT_EQ(list.eos, (std::vector<std::int64_t>{3, 4}));
  EXPECT_EQ(list.bos, 6);
  EXPECT_EQ(parse(config, Json{{"eos_token_id", 3}}).eos, std::vector<std::int64_t>{3});
  EXPECT_TRUE(parse(config, Json{{"eos_token_id", nullptr}}).eos.empty());
  const DecoderConfig outside = parse(config, Json{{"eos_token_id", {3, -1, 32000}}});
  EXPECT_EQ(outside.eos, std::vector<std::int64_t>{3});
  EXPECT_EQ(outside.warnings.size(), 2u);
}

TEST(GenerationConfig, GivesDefaults) {
  const GenerationDefaults none = parse({{"model_type", "llama"}}).generation;
  EXPECT_EQ(none.temperature, std::nullopt);
  EXPECT_EQ(none.top_k, std::nullopt);
  const GenerationDefaults all = parse({{"model_type", "llama"}}, Json{{"do_sample", true},
                                                                       {"temperature", 0.7},
                                                                       {"top_k", 20},
                                                                       {"top_p", 0.8},
                                                                       {"min_p", 0},
                                                                       {"repetition_penalty", 1.05},
                                                                       {"max_new_tokens", 64}})
                                     .generation;
  EXPECT_EQ(all.do_sample, true);
  EXPECT_EQ(all.temperature, 0.7);
  EXPECT_EQ(all.top_k, 20);
  EXPECT_EQ(all.top_p, 0.8);
  EXPECT_EQ(all.min_p, 0.0);
  EXPECT_EQ(all.repetition_penalty, 1.05);
  EXPECT_EQ(all.max_new_tokens, 64);
  const Json config = {{"model_type", "llama"}};
  EXPECT_ERROR(parse(config, Json{{"top_p", 1.5}}),
               "generation_config.json: key \"top_p\" is 1.5, expected a number");
  EXPECT_ERROR(parse(config, Json{{"temperature", "hot"}}),
               "is \"hot\", expected a number from 0 to 1000");
  EXPECT_ERROR(parse(config, Json{{"eos_token_id", "</s>"}}),
               "\"eos_token_id\" is \"</s>\", expected an integer");
  EXPECT_ERROR(parse(config, Json::array()),
               "generation_config.json: is a list of 0, expected a JSON object");
}

TEST(GenerationConfig, WhatItForbidsAndStopsAtIsObeyed) {
  const DecoderConfig config =
      parse({{"model_type", "llama"}}, Json{{"suppress_tokens", {5, 7, 5, -1, 1 << 30}},
                                            {"bad_words_ids", {{9}, {7}, {4, 9}, {4, -1}}},
                                            {"presence_penalty", 0.25},
                                            {"frequency_penalty", -0.5},
                                            {"min_new_tokens", 3},
                                            {"stop_strings", {"###", ""}}});
  EXPECT_EQ(config.generation.banned, (std::vector<std::int32_t>{5, 7, 9}));
  EXPECT_EQ(config.generation.bad_words, (std::vector<std::vector<std::int32_t>>{{4, 9}}));
  EXPECT_EQ(config.generation.presence_penalty, 0.25);
  EXPECT_EQ(config.generation.frequency_penalty, -0.5);
  EXPECT_EQ(config.generation.min_new_tokens, 3);
  EXPECT_EQ(config.generation.stop_strings, std::vector<std::string>{"###"});
  EXPECT_TRUE(config.warnings.empty());
  EXPECT_EQ(parse({{"model_type", "llama"}}, Json{{"stop_strings", "end"}}).generation.stop_strings,
            std::vector<std::string>{"end"});
  EXPECT_ERROR(parse({{"model_type", "llama"}}, Json{{"bad_words_ids", {5}}}),
               "key \"bad_words_ids\" is a list of 1, expected a list of lists of integers (one "
               "element is 5)");
}

TEST(GenerationConfig, WhatIsNotObeyedIsWarnedOfInOneLine) {
  const auto warnings = [](const Json& generation) {
    return parse({{"model_type", "llama"}}, generation).warnings;
  };
  const Json not_obeyed = {{"no_repeat_ngram_size", 3},
                           {"num_beams", 4},
                           {"penalty_alpha", 0.6},
                           {"min_length", 2},
                           {"encoder_no_repeat_ngram_size", 2},
                           {"encoder_repetition_penalty", 1.2},
                           {"typical_p", 0.9},
                           {"epsilon_cutoff", 3e-4},
                           {"eta_cutoff", 3e-4},
                           {"forced_bos_token_id", 0},
                           {"forced_eos_token_id", {0, 1}},
                           {"begin_suppress_tokens", {4}},
                           {"exponential_decay_length_penalty", {4, 1.1}},
                           {"sequence_bias", {{{4}, 2.0}}},
                           {"guidance_scale", 1.5},
                           {"token_healing", true},
                           {"watermarking_config", {{"bias", 2}}},
                           {"force_words_ids", {{4}}}};
  for (const auto& [key, value] : not_obeyed.items()) {
    const std::vector<std::string> got = warnings(Json{{key, value}});
    ASSERT_EQ(got.size(), 1u) << key;
    EXPECT_NE(got.front().find("generation_config.json: is not obeyed in " + key + " "),
              std::string::npos)
        << got.front();
  }
  const std::vector<std::string> all =
      warnings(Json{{"num_beams", 4}, {"no_repeat_ngram_size", 3}, {"top_h", 0.5}});
  ASSERT_EQ(all.size(), 1u);
  EXPECT_NE(all.front().find("is not obeyed in num_beams 4, no_repeat_ngram_size 3, top_h 0.5"),
            std::string::npos)
      << all.front();
  // Neutral values, and what is the caller's or changes no text, say nothing.
  EXPECT_TRUE(warnings(Json{{"num_beams", 1},
                            {"num_beam_groups", 1},
                            {"no_repeat_ngram_size", 0},
                            {"penalty_alpha", nullptr},
                            {"typical_p", 1.0},
                            {"guidance_scale", 1},
                            {"suppress_tokens", Json::array()},
                            {"sequence_bias", nullptr},
                            {"token_healing", false},
                            {"max_length", 4096},
                            {"max_new_tokens", 64},
                            {"use_cache", true},
                            {"pad_token_id", 0},
                            {"length_penalty", 1.0},
                            {"transformers_version", "4.1"},
                            {"cache_implementation", "hybrid"}})
                  .empty());
}

}  // namespace
}  // namespace dendrite
