// What a block drafter's config.json says, and what is refused.
#include "model/drafter_config.h"

#include <gtest/gtest.h>

#include "dendrite/error.h"

namespace dendrite {
namespace {

using Attention = DrafterConfig::Attention;

ModelInfo target() {
  ModelInfo info;
  info.sizes.dim = 64;
  info.sizes.layers = 32;
  info.vocab = 320;
  info.positions.max = 4096;
  return info;
}

/// With more keys, which count, or others' values.
std::string config(const std::string& more = "", const std::string& own = "") {
  return R"({"architectures": ["DFlashDraftModel"], "hidden_size": 64, "intermediate_size": 96,
             "num_hidden_layers": 5, "num_attention_heads": 4, "num_key_value_heads": 2,
             "head_dim": 32, "block_size": 16, "num_target_layers": 32, "rms_norm_eps": 1e-6,
             "rope_theta": 10000000, "dflash_config": {"mask_token_id": 319)" +
         own + "}" + more + "}";
}

DrafterConfig parse(const std::string& text) {
  return parse_drafter_config(text, "config.json", target());
}

std::string error_of(const std::string& text) {
  try {
    parse(text);
  } catch (const Error& error) {
    return error.what();
  }
  return "none";
}

TEST(DrafterConfigTest, WhatIsWritten) {
  const DrafterConfig c = parse(config("", R"(, "target_layer_ids": [5, 19, 30])"));
  EXPECT_EQ(c.layers, 5);
  EXPECT_EQ(c.heads, 4);
  EXPECT_EQ(c.kv_heads, 2);
  EXPECT_EQ(c.head_dim, 32);
  EXPECT_EQ(c.block_size, 16);
  EXPECT_EQ(c.mask_token, 319);
  EXPECT_EQ(c.taps, (std::vector<std::int64_t>{5, 19, 30}));
  EXPECT_EQ(c.rope.theta, 1e7);
  EXPECT_EQ(c.attention, std::vector<Attention>(5));
  EXPECT_EQ(parse(config("", R"(, "block_size": 8)")).block_size, 8);
}

TEST(DrafterConfigTest, TapsThatAreNotWrittenAreSpreadEvenly) {
  EXPECT_EQ(parse(config()).taps, (std::vector<std::int64_t>{1, 8, 15, 22, 29}));
  EXPECT_EQ(parse(config(R"(, "num_hidden_layers": 1)")).taps, (std::vector<std::int64_t>{16}));
  ModelInfo of = target();
  of.sizes.layers = 64;
  EXPECT_EQ(parse_drafter_config(config(R"(, "num_target_layers": 64)"), "", of).taps,
            (std::vector<std::int64_t>{1, 16, 31, 46, 61}));
}

TEST(DrafterConfigTest, LayersThatSlideAreCausalUnlessItSaysSo) {
  const std::string types = R"(, "sliding_window": 2048, "layer_types": ["sliding_attention",
      "sliding_attention", "sliding_attention", "sliding_attention", "full_attention"])";
  const std::vector<Attention> layers = parse(config(types)).attention;
  EXPECT_EQ(layers[0], (Attention{2048, true}));
  EXPECT_EQ(layers[4], (Attention{0, false}));
  EXPECT_EQ(parse(config(types + R"(, "is_causal": true)")).attention[4], (Attention{0, true}));
  EXPECT_EQ(parse(config(types, R"(, "causal": true)")).attention[4], (Attention{0, true}));
  EXPECT_NE(error_of(config(types + R"(, "is_causal": false)")).find("\"layer_types\""),
            std::string::npos);
}

TEST(DrafterConfigTest, WhatDoesNotFitOrIsNotSupportedIsRefused) {
  const std::pair<std::string, std::string> wrong[] = {
      {R"(, "architectures": ["DFlash2DraftModel"])", "\"architectures\""},
      {R"(, "architectures": null)", "\"architectures\""},
      {R"(, "hidden_size": 128)", "the model's, 64"},
      {R"(, "num_target_layers": 36)", "the model's number of layers, 32"},
      {R"(, "block_size": 1)", "\"block_size\""},
      {R"(, "num_key_value_heads": 3)", "a divisor of num_attention_heads, 4"},
      {R"(, "head_dim": 31)", "an even number"},
      {R"(, "attention_bias": true)", "biases are not supported"},
      {R"(, "attention_sink_bias": true)", "sinks are not supported"},
      {R"(, "layer_types": ["full_attention"])", "num_hidden_layers, 5"},
      {R"(, "partial_rotary_factor": 0.5)", "partial_rotary_factor"},
      {R"(, "dflash_config": {"mask_token_id": 320})", "mask_token_id"},
      {R"(, "dflash_config": {})", "mask_token_id"},
      {R"(, "dflash_config": {"mask_token_id": 1, "target_layer_ids": [3, 2]})", "ascending"},
      {R"(, "dflash_config": {"mask_token_id": 1, "target_layer_ids": [3, 32]})", "0 to 31"},
  };
  for (const auto& [more, why] : wrong) {
    const std::string error = error_of(config(more));
    EXPECT_NE(error.find(why), std::string::npos) << more << ": " << error;
    EXPECT_NE(error.find("config.json"), std::string::npos) << error;
  }
}

}  // namespace
}  // namespace dendrite
