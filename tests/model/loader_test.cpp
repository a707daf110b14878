// What a loader says of a folder's model before it is loaded, or without weights.
#include "model/loader.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "../io/test_files.h"
#include "io/model_folder.h"
#include "support/golden_data.h"

namespace dendrite {
namespace {

using Json = nlohmann::json;

/// A folder of texts alone, whose config has these keys added or replaced.
class LoaderTest : public ::testing::Test {
 protected:
  ModelInfo info_with(const Json& changes = Json::object()) {
    write(changes);
    return make_loader(folder())->info();
  }
  std::uint64_t hash_with(const Json& changes = Json::object()) {
    return info_with(changes).config_hash;
  }
  void write(const Json& changes) {
    Json config = {{"model_type", "qwen3"},    {"hidden_size", 64},
                   {"intermediate_size", 96},  {"num_hidden_layers", 3},
                   {"num_attention_heads", 4}, {"num_key_value_heads", 2},
                   {"head_dim", 32},           {"vocab_size", 320},
                   {"rms_norm_eps", 1e-6},     {"max_position_embeddings", 512},
                   {"torch_dtype", "float16"}};
    config.update(changes);
    temp_.write("config.json", config.dump());
  }
  ModelFolder folder() const {
    return ModelFolder::open(temp_.path().string(), ModelFolder::Weights::kSkip);
  }

  const test::TempFolder temp_;
};

TEST_F(LoaderTest, TellsWhatTheFilesSay) {
  temp_.write("generation_config.json",
              R"({"bos_token_id": 1, "eos_token_id": [2, 9, 400], "top_k": 20})");
  const ModelInfo info = info_with();
  EXPECT_EQ(info.type, "qwen3");
  EXPECT_EQ(info.sizes.layers, 3);
  EXPECT_EQ(info.sizes.dim, 64);
  EXPECT_EQ(info.sizes.ffn_dim, 96);
  EXPECT_EQ(info.sizes.heads, 4);
  EXPECT_EQ(info.sizes.kv_heads, 2);
  EXPECT_EQ(info.sizes.head_dim, 32);
  EXPECT_EQ(info.vocab, 320);
  EXPECT_EQ(info.kv.layers, 3);
  EXPECT_EQ(info.kv.kv_heads, 2);
  EXPECT_EQ(info.kv.head_dim, 32);
  EXPECT_EQ(info.positions.max, 512);
  EXPECT_FALSE(info.positions.hard);
  EXPECT_EQ(info.positions.rope, "default");
  EXPECT_EQ(info.bos, 1);
  EXPECT_EQ(info.eos, (std::vector<Token>{2, 9}));
  EXPECT_EQ(info.generation.top_k, 20);
  EXPECT_EQ(info.stored_dtype, DType::kF16);
  ASSERT_EQ(info.warnings.size(), 1U);
  EXPECT_NE(info.warnings.front().find("eos_token_id 400"), std::string::npos);
}

TEST_F(LoaderTest, SaysWherePositionsEndForGood) {
  const ModelInfo info = info_with({{"rope_scaling", {{"type", "dynamic"}, {"factor", 2}}}});
  EXPECT_TRUE(info.positions.hard);
  EXPECT_EQ(info.positions.rope, "dynamic");
}

TEST_F(LoaderTest, HashesWhatResultsDependOnAlone) {
  const std::uint64_t hash = hash_with();
  const Json others[] = {{{"rms_norm_eps", 1e-5}},
                         {{"rope_theta", 5e5}},
                         {{"attention_bias", true}},
                         {{"tie_word_embeddings", true}},
                         {{"num_hidden_layers", 4}},
                         {{"max_position_embeddings", 1024}},
                         {{"use_sliding_window", true}, {"max_window_layers", 1}}};
  for (const Json& changes : others) EXPECT_NE(hash_with(changes), hash) << changes;
  temp_.write("generation_config.json", R"({"temperature": 0.5, "eos_token_id": 7})");
  EXPECT_EQ(hash_with(), hash);
  EXPECT_EQ(hash_with({{"torch_dtype", "float32"}}), hash);
}

TEST_F(LoaderTest, WithoutWeightsTheirTypeIsWhatTheConfigSays) {
  const auto type_with = [&](const Json& changes) {
    write(changes);
    const ModelFolder texts = folder();
    return make_loader(texts)->weight_dtype();
  };
  EXPECT_EQ(type_with(Json::object()), DType::kF16);
  EXPECT_EQ(type_with({{"torch_dtype", "float32"}}), DType::kF32);
  EXPECT_EQ(type_with({{"torch_dtype", nullptr}}), DType::kBF16);
}

TEST_F(LoaderTest, TheWeightsOwnTypeCounts) {
  const std::filesystem::path model = test::model_path("llama_f16");
  if (!std::filesystem::exists(model)) GTEST_SKIP() << model << " is missing";
  std::filesystem::copy(
      model, temp_.path(),
      std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
  Json config = Json::parse(std::ifstream(temp_.path() / "config.json"));
  config.erase("torch_dtype");
  config["dtype"] = "float32";
  temp_.write("config.json", config.dump());
  const ModelFolder whole = ModelFolder::open(temp_.path().string());
  const auto loader = make_loader(whole);
  EXPECT_EQ(loader->info().stored_dtype, DType::kF32);
  EXPECT_EQ(loader->weight_dtype(), DType::kF16);
}

}  // namespace
}  // namespace dendrite
