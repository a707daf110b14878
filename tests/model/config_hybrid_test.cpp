// Configs of hybrids, and what their loaders say and refuse.
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

/// Qwen3.5-0.8B's text model.
Json text_config(const Json& changes = Json::object()) {
  Json config = {{"model_type", "qwen3_5_text"},
                 {"hidden_size", 1024},
                 {"intermediate_size", 3584},
                 {"num_hidden_layers", 24},
                 {"num_attention_heads", 8},
                 {"num_key_value_heads", 2},
                 {"head_dim", 256},
                 {"vocab_size", 248320},
                 {"linear_num_key_heads", 16},
                 {"linear_num_value_heads", 16},
                 {"max_position_embeddings", 262144},
                 {"eos_token_id", 248044},
                 {"dtype", "bfloat16"},
                 {"attn_output_gate", true},
                 {"mtp_num_hidden_layers", 1},
                 {"rope_parameters",
                  {{"rope_type", "default"},
                   {"rope_theta", 1e7},
                   {"partial_rotary_factor", 0.25},
                   {"mrope_interleaved", true},
                   {"mrope_section", {11, 11, 10}}}}};
  config.update(changes);
  return config;
}

DecoderConfig parse(const Json& config) {
  return parse_config(config.dump(), std::nullopt, "folder");
}

Json whole_config(const Json& text, const Json& changes = Json::object()) {
  Json config = {{"model_type", "qwen3_5"},
                 {"architectures", {"Qwen3_5ForConditionalGeneration"}},
                 {"text_config", text},
                 {"vision_config", {{"model_type", "qwen3_5"}}},
                 {"tie_word_embeddings", true}};
  config.update(changes);
  return config;
}

testing::AssertionResult refuses(const Json& changes, const std::string& part) {
  return test::throws([&] { parse(text_config(changes)); }, part);
}

TEST(HybridConfig, IsReadWhereItStands) {
  for (const Json& config : {text_config({{"tie_word_embeddings", true}}),
                             whole_config(text_config({{"tie_word_embeddings", false}}))}) {
    const DecoderConfig c = parse(config);
    EXPECT_EQ(c.model_type, config["model_type"]);
    EXPECT_EQ(c.dim, 1024);
    EXPECT_EQ(c.layers, 24);
    EXPECT_EQ(c.recurrent_layers(), 18);
    EXPECT_TRUE(c.is_recurrent(0) && c.is_recurrent(2) && c.is_recurrent(4));
    EXPECT_FALSE(c.is_recurrent(3) || c.is_recurrent(23));
    ASSERT_TRUE(c.delta_net);
    EXPECT_EQ(c.delta_net->key_heads, 16);
    EXPECT_EQ(c.delta_net->value_heads, 16);
    EXPECT_EQ(c.delta_net->key_dim, 128);
    EXPECT_EQ(c.delta_net->value_dim, 128);
    EXPECT_EQ(c.delta_net->taps, 4);
    EXPECT_TRUE(c.qk_norm && c.attention_gate && c.zero_centred_norms);
    EXPECT_FALSE(c.attention_bias || c.attention_out_bias || c.mlp_bias);
    EXPECT_EQ(c.rotary_dim, 64);
    EXPECT_EQ(c.rope.theta, 1e7);
    EXPECT_EQ(c.mtp_layers, 1);
    EXPECT_TRUE(c.tie_embeddings);  // what the file itself says counts
    EXPECT_EQ(c.eos, std::vector<std::int64_t>{248044});
    EXPECT_EQ(c.stored_dtype, DType::kBF16);
  }
  const DecoderConfig other =
      parse(whole_config(text_config(), {{"eos_token_id", 248046}, {"dtype", "float16"}}));
  EXPECT_EQ(other.eos, std::vector<std::int64_t>{248046});
  EXPECT_EQ(other.stored_dtype, DType::kBF16);
}

TEST(HybridConfig, MissingKeysMeanWhatTransformersTakesThemToMean) {
  const DecoderConfig c = parse({{"model_type", "qwen3_5_text"}});
  EXPECT_EQ(c.dim, 4096);
  EXPECT_EQ(c.ffn_dim, 12288);
  EXPECT_EQ(c.layers, 32);
  EXPECT_EQ(c.kv_heads, 4);
  EXPECT_EQ(c.head_dim, 256);
  EXPECT_EQ(c.rotary_dim, 64);
  EXPECT_EQ(c.vocab, 248320);
  EXPECT_EQ(c.max_positions, 32768);
  EXPECT_EQ(c.recurrent_layers(), 24);
  EXPECT_EQ(c.delta_net->key_heads, 16);
  EXPECT_EQ(c.delta_net->value_heads, 32);
}

TEST(HybridConfig, LayersAreWhatTheFileSays) {
  const auto layers = [](const Json& changes) {
    Json all = {{"num_hidden_layers", 4}};
    all.update(changes);
    return parse(text_config(all)).recurrent;
  };
  using Layers = std::vector<bool>;
  EXPECT_EQ(layers({{"full_attention_interval", 2}}), (Layers{true, false, true, false}));
  EXPECT_EQ(
      layers({{"full_attention_interval", 2},
              {"layer_types",
               {"full_attention", "linear_attention", "linear_attention", "full_attention"}}}),
      (Layers{false, true, true, false}));
  EXPECT_EQ(layers({{"layer_types", Json(4, "full_attention")}}), Layers(4, false));
}

TEST(HybridConfig, RotatesAsMuchOfAHeadAsTheFileSays) {
  const auto rotary = [](const Json& changes) { return parse(text_config(changes)).rotary_dim; };
  EXPECT_EQ(rotary({{"head_dim", 24}, {"rope_parameters", {{"partial_rotary_factor", 0.26}}}}), 6);
  EXPECT_EQ(rotary({{"rope_parameters", nullptr}, {"partial_rotary_factor", 1.0}}), 256);
  EXPECT_EQ(rotary({{"rope_parameters", {{"rope_theta", 1e6}}}}), 64);
}

TEST(RefusedHybridConfig, NamesWhatIsNotSupported) {
  EXPECT_TRUE(refuses({{"num_experts", 8}}, "\"num_experts\" is 8, expected none (a mixture of"));
  EXPECT_TRUE(refuses({{"moe_intermediate_size", 64}}, "\"moe_intermediate_size\""));
  EXPECT_TRUE(refuses({{"model_type", "qwen4_exp"}}, "\"model_type\" is \"qwen4_exp\", expected"));
  EXPECT_TRUE(test::throws(
      [] {
        parse(whole_config(text_config({{"model_type", "qwen3_5_moe_text"}})));
      },
      "\"text_config.model_type\" is \"qwen3_5_moe_text\""));
  EXPECT_TRUE(test::throws([] { parse(whole_config(nullptr)); }, "\"text_config\" is null"));
  EXPECT_TRUE(refuses({{"attn_output_gate", false}}, "\"attn_output_gate\" is false"));
  EXPECT_TRUE(refuses({{"output_gate_type", "sigmoid"}},
                      "\"output_gate_type\" is \"sigmoid\", expected \"swish\""));
  EXPECT_TRUE(refuses({{"hidden_act", "gelu"}}, "\"hidden_act\" is \"gelu\""));
  EXPECT_TRUE(refuses({{"quantization_config", {{"quant_method", "bitsandbytes"}}}},
                      "quantization_config.quant_method"));
  EXPECT_TRUE(refuses({{"num_hidden_layers", 1}, {"layer_types", {"sliding_attention"}}},
                      "\"sliding_attention\" is not supported"));
  EXPECT_TRUE(refuses({{"layer_types", {"full_attention"}}}, "num_hidden_layers, 24"));
  EXPECT_TRUE(refuses({{"num_hidden_layers", 3}}, "leaves a layer of full attention among 3"));
}

TEST(RefusedHybridConfig, SizesMustBePossible) {
  EXPECT_TRUE(refuses({{"linear_num_value_heads", 24}}, "a multiple of linear_num_key_heads, 16"));
  EXPECT_TRUE(refuses({{"linear_conv_kernel_dim", 1}}, "\"linear_conv_kernel_dim\" is 1"));
  EXPECT_TRUE(refuses({{"linear_conv_kernel_dim", 17}}, "\"linear_conv_kernel_dim\" is 17"));
  EXPECT_TRUE(refuses({{"linear_key_head_dim", 0}}, "\"linear_key_head_dim\" is 0"));
  EXPECT_TRUE(refuses({{"rope_parameters", {{"partial_rotary_factor", 0.005}}}},
                      "2 or more, of head_dim 256 (it makes 1)"));
  EXPECT_TRUE(refuses({{"rope_parameters", {{"mrope_section", {11, 11, 11}}}}},
                      "three numbers that add up to 32"));
}

/// What a folder's loader says of it without weights.
ModelInfo info_of(const Json& config) {
  const test::TempFolder temp;
  temp.write("config.json", config.dump());
  const ModelFolder folder = ModelFolder::open(temp.path().string(), ModelFolder::Weights::kSkip);
  return make_loader(folder)->info();
}

TEST(HybridLoader, TellsWhatPathsKeep) {
  const ModelInfo info = info_of(whole_config(text_config()));
  EXPECT_EQ(info.type, "qwen3_5");
  EXPECT_EQ(info.sizes.layers, 24);
  EXPECT_EQ(info.kv.layers, 6);
  ASSERT_TRUE(info.state);
  EXPECT_EQ(info.state->layers, 18);
  const std::int64_t channels = 3 * 16 * 128;
  EXPECT_EQ(info.state->anchor_values, 16 * 128 * 128 + 3 * channels);
  EXPECT_EQ(info.state->journal_values, 16 * 128 + 16 * 129 + channels);
  EXPECT_FALSE(info_of({{"model_type", "qwen3"}}).state);
}

TEST(HybridLoader, HashesWhatResultsDependOn) {
  const std::uint64_t hash = info_of(text_config()).config_hash;
  for (const Json& changes :
       {Json{{"full_attention_interval", 2}}, Json{{"linear_num_value_heads", 32}},
        Json{{"linear_conv_kernel_dim", 3}}, Json{{"linear_value_head_dim", 64}},
        Json{{"rope_parameters", {{"partial_rotary_factor", 0.5}}}}}) {
    EXPECT_NE(info_of(text_config(changes)).config_hash, hash) << changes;
  }
  EXPECT_EQ(info_of(text_config({{"mtp_num_hidden_layers", 2}})).config_hash, hash);
}

/// The error that a golden's folder gives when its config says something else.
std::string error_with(const std::string& model, const Json& changes) {
  const test::TempFolder temp;
  std::filesystem::copy(
      test::model_path(model), temp.path(),
      std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
  Json config = Json::parse(std::ifstream(test::model_path(model) / "config.json"));
  (config.contains("text_config") ? config["text_config"] : config).update(changes);
  temp.write("config.json", config.dump());
  const ModelFolder folder = ModelFolder::open(temp.path().string());
  try {
    make_loader(folder)->check(*make_cpu_backend(Numerics::kF32, 1));
  } catch (const std::exception& error) {
    return error.what();
  }
  return "";
}

TEST(HybridLoader, NamesTensorsThatAreNotThere) {
  const auto expect = [](const std::string& error, const std::string& part) {
    EXPECT_NE(error.find(part), std::string::npos) << error;
  };
  for (const char* model : {"qwen3_5", "qwen3_5_text"})
    EXPECT_EQ(error_with(model, Json::object()), "");
  expect(error_with("qwen3_5", {{"layer_types", Json(4, "full_attention")}}),
         "\"model.language_model.layers.0.self_attn.q_proj.weight\"");
  expect(error_with("qwen3_5_text", {{"layer_types",
                                      {"linear_attention", "linear_attention", "full_attention",
                                       "linear_attention"}}}),
         "\"model.layers.0.linear_attn.in_proj_qkv.weight\"");
  expect(error_with("qwen3_5", {{"linear_conv_kernel_dim", 3}}),
         "\"model.language_model.layers.0.linear_attn.conv1d.weight\" has shape [64, 1, 4], "
         "expected [64, 1, 3]");
  expect(error_with("qwen3_5", {{"attention_bias", true}}),
         "\"model.language_model.layers.3.self_attn.q_proj.bias\"");
}

}  // namespace
}  // namespace dendrite
