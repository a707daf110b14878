// Configs of models with short convolutions, and what their loaders say and refuse.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "../io/test_files.h"
#include "backend/backend.h"
#include "io/model_folder.h"
#include "model/config_reader.h"
#include "model/loader.h"
#include "support/golden_data.h"

namespace dendrite {
namespace {

using Json = nlohmann::json;
using Flags = std::vector<bool>;

DecoderConfig parse(const Json& config) {
  return parse_config(config.dump(), std::nullopt, "folder");
}

/// LFM2-1.2B's, as the hub has it.
Json lfm2(const Json& changes = Json::object()) {
  Json config = {{"model_type", "lfm2"},      {"architectures", {"Lfm2ForCausalLM"}},
                 {"hidden_size", 2048},       {"num_hidden_layers", 16},
                 {"num_attention_heads", 32}, {"num_key_value_heads", 8},
                 {"vocab_size", 65536},       {"block_auto_adjust_ff_dim", true},
                 {"block_ff_dim", 12288},     {"block_ffn_dim_multiplier", 1.0},
                 {"block_multiple_of", 256},  {"conv_L_cache", 3},
                 {"conv_bias", false},        {"full_attn_idxs", {2, 5, 8, 10, 12, 14}},
                 {"norm_eps", 1e-5},          {"rope_theta", 1000000.0},
                 {"tie_embedding", true},     {"torch_dtype", "bfloat16"}};
  config.update(changes);
  return config;
}

testing::AssertionResult refuses(const Json& config, const std::string& part) {
  return test::throws([&] { parse(config); }, part);
}

TEST(ShortConvConfig, IsReadAsTheHubHasIt) {
  const DecoderConfig c = parse(lfm2());
  EXPECT_EQ(c.recurrent_layers(), 10);
  EXPECT_TRUE(c.is_recurrent(0) && c.is_recurrent(1) && c.is_recurrent(15));
  EXPECT_FALSE(c.is_recurrent(2) || c.is_recurrent(14));
  ASSERT_TRUE(c.short_conv);
  EXPECT_EQ(c.short_conv->channels, 2048);
  EXPECT_EQ(c.short_conv->taps, 3);
  EXPECT_EQ(c.ffn_dim, 8192);
  EXPECT_EQ(c.head_dim, 64);
  EXPECT_EQ(c.norm_eps, 1e-5F);
  EXPECT_EQ(c.rope.theta, 1e6);
  EXPECT_TRUE(c.tie_embeddings && c.qk_norm);
  EXPECT_FALSE(c.short_conv_bias || c.attention_bias || c.mlp_bias || c.attention_head_gate);
  EXPECT_FALSE(parse(lfm2({{"tie_embedding", false}})).tie_embeddings);
  EXPECT_EQ(parse(lfm2({{"norm_eps", 0.5}})).norm_eps, 0.5F);
  // Layers of convolutions alone among others: none is recurrent where all have attention.
  EXPECT_FALSE(parse(lfm2({{"full_attn_idxs", nullptr}})).short_conv);
}

TEST(ShortConvConfig, WidthsAreAdjusted) {
  const auto width = [](const Json& changes) { return parse(lfm2(changes)).ffn_dim; };
  EXPECT_EQ(width({{"block_auto_adjust_ff_dim", false}}), 12288);
  EXPECT_EQ(width({{"block_ff_dim", 6912}}), 4608);
  EXPECT_EQ(width({{"block_ffn_dim_multiplier", 1.3}}), 10752);
  EXPECT_EQ(width({{"block_ffn_dim_multiplier", nullptr}, {"block_ff_dim", 100}}), 66);
  EXPECT_TRUE(refuses(lfm2({{"block_ffn_dim_multiplier", 1e5}}), "block_ffn_dim_multiplier"));
}

TEST(ShortConvConfig, MissingKeysMeanWhatTransformersTakesThemToMean) {
  const DecoderConfig c = parse({{"model_type", "lfm2"}, {"full_attn_idxs", {0}}});
  EXPECT_EQ(c.dim, 2560);
  EXPECT_EQ(c.ffn_dim, 8192);
  EXPECT_EQ(c.recurrent_layers(), 31);
  EXPECT_EQ(c.short_conv->taps, 3);
  EXPECT_EQ(c.rope.theta, 1e6);
  EXPECT_TRUE(c.tie_embeddings);

  const DecoderConfig mixed = parse({{"model_type", "lfm2_moe"}, {"full_attn_idxs", {2}}});
  ASSERT_TRUE(mixed.experts);
  const Routing& routing = mixed.experts->routing;
  EXPECT_EQ(routing.experts, 32);
  EXPECT_EQ(routing.chosen, 4);
  EXPECT_EQ(routing.score, RouterScore::kSigmoid);
  EXPECT_TRUE(routing.normalised);
  EXPECT_EQ(routing.sum_bias, 1e-6F);
  EXPECT_EQ(routing.scale, 1);
  EXPECT_EQ(mixed.experts->ffn_dim, 1792);
  EXPECT_EQ(mixed.ffn_dim, 7168);  // which is not adjusted
  EXPECT_EQ(mixed.mixed_layers(), 30);
  EXPECT_FALSE(mixed.is_mixed(0) || mixed.is_mixed(1));
  EXPECT_EQ(mixed.expert_names.correction, "expert_bias");
  EXPECT_EQ(parse({{"model_type", "lfm2_moe"}, {"full_attn_idxs", {2}}, {"use_expert_bias", false}})
                .expert_names.correction,
            "");
  EXPECT_TRUE(refuses({{"model_type", "lfm2_moe"}}, "layer_types"));

  const DecoderConfig third = parse({{"model_type", "lfm3"}});
  EXPECT_EQ(third.dim, 2048);
  EXPECT_EQ(third.head_dim, 128);
  EXPECT_EQ(third.recurrent_layers(), 13);
  EXPECT_EQ(third.short_conv->taps, 7);
  EXPECT_TRUE(third.is_recurrent(0) && !third.is_recurrent(2) && !third.is_recurrent(4));
  EXPECT_EQ(third.windows[2], 0);
  EXPECT_EQ(third.windows[4], 256);
  EXPECT_TRUE(third.attention_head_gate);
  EXPECT_EQ(third.norms.behind_mixer, "post_operator_norm");
  EXPECT_EQ(third.rope.type, RopeType::kProportional);
  EXPECT_EQ(third.rope.rotated_part, 0.5);
  EXPECT_EQ(third.rope.theta, 1e6);
  ASSERT_TRUE(third.local_rope);
  EXPECT_EQ(third.local_rope->theta, 1e4);
}

TEST(ShortConvConfig, OptionsMayBeOff) {
  const DecoderConfig c = parse({{"model_type", "lfm3"},
                                 {"use_sandwich_norm", false},
                                 {"use_attention_gate", false},
                                 {"attention_bias", true},
                                 {"conv_bias", true}});
  EXPECT_EQ(c.norms.behind_mixer + c.norms.behind_ffn, "");
  EXPECT_FALSE(c.attention_head_gate);
  EXPECT_TRUE(c.attention_bias && c.attention_out_bias && c.short_conv_bias);
}

TEST(ShortConvConfig, RefusesWhatItDoesNotCompute) {
  EXPECT_TRUE(refuses(lfm2({{"conv_L_cache", 1}}), "\"conv_L_cache\" is 1, expected"));
  EXPECT_TRUE(refuses(lfm2({{"conv_L_cache", 17}}), "\"conv_L_cache\" is 17, expected"));
  EXPECT_TRUE(refuses(lfm2({{"full_attn_idxs", {16}}}), "full_attn_idxs"));
  EXPECT_TRUE(refuses(lfm2({{"layer_types", Json(3, "conv")}}),
                      "expected one for each of num_hidden_layers, 16"));
  EXPECT_TRUE(refuses(lfm2({{"layer_types", Json(16, "conv")}}), "one of attention among 16"));
  EXPECT_TRUE(refuses(lfm2({{"layer_types", Json(16, "sliding_attention")}}),
                      "\"conv\" or \"full_attention\" in each place (\"sliding_attention\" is not "
                      "supported)"));
  EXPECT_TRUE(refuses({{"model_type", "lfm3"}, {"sliding_window", nullptr}}, "sliding_window"));
  EXPECT_TRUE(refuses({{"model_type", "lfm3"}, {"attention_bias", true}}, "attention_bias"));
}

/// A loader of a golden's folder whose config says something else, and what `fn` makes of it.
template <class Fn>
auto with_config(const std::string& model, const Json& changes, const Fn& fn) {
  const test::TempFolder temp;
  std::filesystem::copy(
      test::model_path(model), temp.path(),
      std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
  Json config = Json::parse(std::ifstream(test::model_path(model) / "config.json"));
  config.update(changes);
  temp.write("config.json", config.dump());
  const ModelFolder folder = ModelFolder::open(temp.path().string());
  return fn(*make_loader(folder));
}

std::string error_with(const std::string& model, const Json& changes) {
  return with_config(model, changes, [](const ModelLoader& loader) -> std::string {
    try {
      loader.check(*make_cpu_backend(Numerics::kF32, 1));
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  });
}

TEST(ShortConvLoader, TellsWhatPathsKeep) {
  const ModelInfo info =
      with_config("lfm3", Json::object(), [](const ModelLoader& loader) { return loader.info(); });
  EXPECT_EQ(info.kv.layers, 2);
  ASSERT_TRUE(info.state);
  EXPECT_EQ(info.state->layers, 2);
  EXPECT_EQ(info.state->anchor_values, 6 * 32);
  EXPECT_EQ(info.state->journal_values, 32);
}

TEST(ShortConvLoader, HashesWhatResultsDependOn) {
  const auto hash = [](const Json& changes) {
    return with_config("lfm3", changes,
                       [](const ModelLoader& loader) { return loader.info().config_hash; });
  };
  const std::uint64_t plain = hash(Json::object());
  for (const Json& changes :
       {Json{{"conv_L_cache", 5}}, Json{{"conv_bias", true}}, Json{{"use_attention_gate", false}},
        Json{{"use_sandwich_norm", false}},
        Json{{"layer_types", {"conv", "conv", "full_attention", "conv"}}},
        Json{{"rope_parameters",
              {{"full_attention", {{"rope_type", "proportional"}, {"rope_theta", 1e3}}},
               {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 100.0}}}}}}}) {
    EXPECT_NE(hash(changes), plain) << changes;
  }
  EXPECT_EQ(hash({{"use_cache", false}}), plain);
}

TEST(ShortConvLoader, NamesTensorsThatAreNotThere) {
  const auto expect = [](const std::string& error, const std::string& part) {
    EXPECT_NE(error.find(part), std::string::npos) << error;
  };
  for (const char* model : {"lfm2", "lfm2_moe", "lfm3"}) {
    EXPECT_EQ(error_with(model, Json::object()), "");
  }
  expect(error_with("lfm2", {{"full_attn_idxs", {2}}}), "\"model.layers.1.conv.in_proj.weight\"");
  expect(error_with("lfm2", {{"conv_L_cache", 4}}),
         "\"model.layers.0.conv.conv.weight\" has shape [32, 1, 3], expected [32, 1, 4]");
  expect(error_with("lfm2", {{"conv_bias", true}}), "\"model.layers.0.conv.in_proj.bias\"");
  expect(error_with("lfm2", {{"block_ff_dim", 48}}), "\"model.layers.0.feed_forward.w1.weight\"");
  expect(error_with("lfm2_moe", {{"num_dense_layers", 0}}),
         "\"model.layers.0.feed_forward.gate.weight\"");
}

}  // namespace
}  // namespace dendrite
