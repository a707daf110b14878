// Folders that are written with fewer bits, read back.
#include "dendrite/quantize.h"

#include <gtest/gtest.h>

#include <cmath>
#include <fstream>

#include "dendrite/model_files.h"
#include "support/quantized_model.h"
#include "support/tiny_model.h"

namespace dendrite::test {
namespace {

bool is_matrix(std::string_view name) {
  return name.ends_with("_proj.weight");
}

/// The mean over matrices of |packed - plain|^2 / |plain|^2, columns not scaled.
double mean_error_of(const ModelFolder& plain, const ModelFolder& packed) {
  double sum = 0;
  int count = 0;
  for (const std::string_view name : plain.names()) {
    if (!is_matrix(name)) continue;
    const auto& shape = plain.find(name)->shape;
    sum +=
        error_of(plain.matrix(name, shape[0], shape[1]), packed.matrix(name, shape[0], shape[1]));
    ++count;
  }
  return sum / count;
}

class QuantizeFormats : public Quantize, public testing::WithParamInterface<QuantizeCase> {};

INSTANTIATE_TEST_SUITE_P(Formats, QuantizeFormats, testing::ValuesIn(kQuantizeCases),
                         [](const auto& one) { return one.param.format; });

TEST_F(Quantize, NamesWhatStaysForOtherReaders) {
  quantize(test::model_path("gemma4"), out(), {.format = "int8"});
  const nlohmann::json config = config_of(out());
  const nlohmann::json& ignored = config["quantization_config"]["ignore"];
  const auto ignores = [&](const char* name) {
    return std::ranges::find(ignored, nlohmann::json(name)) != ignored.end();
  };
  EXPECT_TRUE(ignores("re:.*layers\\.2\\.router\\.proj$"));
  EXPECT_TRUE(ignores("lm_head"));
  EXPECT_TRUE(std::ranges::any_of(ignored, [](const nlohmann::json& one) {
    return one.get<std::string>().starts_with("re:.*vision_tower\\.");
  }));
  const ModelFolder folder = ModelFolder::open(out().string());
  const std::string layer = "model.language_model.layers.0.";
  EXPECT_NE(folder.find(layer + "experts.5.up_proj.weight_scale"), nullptr);
  EXPECT_EQ(folder.find(layer + "experts.gate_up_proj"), nullptr);
}

TEST_F(Quantize, LeavesWhatSaysHowMuchIsWrittenAndForgotten) {
  quantize(test::model_path("kimi_linear"), out(), {.format = "int8"});
  const ModelFolder folder = ModelFolder::open(out().string());
  const std::string layer = "model.layers.0.self_attn.";
  for (const char* packed : {"q_proj", "g_a_proj", "g_b_proj", "o_proj"}) {
    EXPECT_NE(folder.find(layer + packed + ".weight_scale"), nullptr) << packed;
  }
  for (const char* plain : {"b_proj", "f_a_proj", "f_b_proj"}) {
    EXPECT_EQ(folder.find(layer + plain + ".weight_scale"), nullptr) << plain;
  }
}

TEST_P(QuantizeFormats, AreReadBackAndComputeNearlyTheSame) {
  const TinyModel model({.model_type = "qwen3", .heads = 4, .kv_heads = 2});
  const Quantized done = quantize(model.path(), out(), {.format = GetParam().format});
  EXPECT_EQ(done.matrices, 14);
  EXPECT_TRUE(done.left.empty());
  EXPECT_FALSE(done.cancelled);
  const ModelFolder plain = ModelFolder::open(model.path());
  const ModelFolder packed = ModelFolder::open(out().string());
  const double error = mean_error_of(plain, packed);
  EXPECT_GT(error, 0);
  EXPECT_LT(error, GetParam().most);
  for (const std::string_view name : plain.names()) {
    if (is_matrix(name)) continue;
    const TensorInfo& was = *plain.find(name);
    const TensorInfo& is = *packed.find(name);
    ASSERT_EQ(was.size_bytes, is.size_bytes) << name;
    EXPECT_EQ(std::memcmp(was.data, is.data, static_cast<std::size_t>(was.size_bytes)), 0) << name;
  }
  EXPECT_LT(distance(logits_of(out()), logits_of(model.path())), 5 * std::sqrt(GetParam().most));
  const auto stored = stored_weights(out().string());
  EXPECT_TRUE(std::ranges::any_of(stored, [](const StoredWeights& weights) {
    return weights.format == GetParam().stored && weights.tensors == 14;
  }));
}

TEST_F(Quantize, Fp8AtLoadIsWhatAFileOfItHolds) {
  const TinyModel model({.model_type = "qwen3", .heads = 4, .kv_heads = 2});
  quantize(model.path(), out(), {.format = "fp8"});
  const std::vector<float> plain = logits_of(model.path());
  const std::vector<float> file = logits_of(out());
  EXPECT_EQ(logits_of(model.path(), kPrompts, "fp8"), file);
  EXPECT_NE(plain, file);
}

TEST_P(QuantizeFormats, SaySoInConfig) {
  const TinyModel model({});
  quantize(model.path(), out(), {.format = GetParam().format});
  nlohmann::json config = config_of(out());
  const nlohmann::json said = config["quantization_config"];
  const std::string format = GetParam().format;
  EXPECT_EQ(said["quant_method"], "compressed-tensors");
  EXPECT_EQ(said["format"], format == "fp8"    ? "float-quantized"
                            : format == "int8" ? "int-quantized"
                                               : "pack-quantized");
  EXPECT_EQ(said["ignore"], nlohmann::json::array({"lm_head"}));
  const nlohmann::json& weights = said["config_groups"]["group_0"]["weights"];
  EXPECT_EQ(weights["num_bits"], format == "int4" ? 4 : 8);
  EXPECT_EQ(weights["type"], format == "fp8" ? "float" : "int");
  EXPECT_EQ(weights.value("group_size", 0), format == "int4" ? 64 : 0);
  config.erase("quantization_config");
  EXPECT_EQ(config, config_of(model.path()));
}

TEST_F(Quantize, TheOutputMatrixIsAGroupOfItsOwn) {
  const TinyModel model({.model_type = "qwen3", .tied = false});
  const std::vector<float> plain = logits_of(model.path());
  for (const char* format : {"fp8", "int8"}) {
    for (const char* output : {"fp8", "int8"}) {
      const fs::path folder = folder_.path() / (std::string(format) + output);
      const Quantized done =
          quantize(model.path(), folder, {.format = format, .output_quantization = output});
      EXPECT_EQ(done.matrices, 15);
      const nlohmann::json said = config_of(folder)["quantization_config"];
      EXPECT_TRUE(said["ignore"].empty());
      const bool same = std::string(format) == output;
      EXPECT_EQ(said["config_groups"].size(), same ? 1 : 2);
      if (!same) {
        EXPECT_EQ(said["format"], "mixed-precision");
        const nlohmann::json& group = said["config_groups"]["group_1"];
        EXPECT_EQ(group["targets"], nlohmann::json::array({"lm_head"}));
        EXPECT_EQ(group["format"],
                  output == std::string("fp8") ? "float-quantized" : "int-quantized");
        EXPECT_EQ(group["weights"]["type"], output == std::string("fp8") ? "float" : "int");
      }
      const ModelFolder packed = ModelFolder::open(folder.string());
      EXPECT_EQ(packed.find("lm_head.weight")->stored_type,
                output == std::string("fp8") ? "F8_E4M3" : "I8");
      const double off = distance(logits_of(folder), plain);
      EXPECT_GT(off, 0);
      EXPECT_LT(off, 0.2);
    }
  }
}

TEST_F(Quantize, TheOutputMatrixOfATextBesideVisionHasItsOwnName) {
  quantize(test::model_path("mistral3"), out(), {.format = "fp8", .output_quantization = "int8"});
  const nlohmann::json said = config_of(out())["quantization_config"];
  EXPECT_EQ(said["config_groups"]["group_1"]["targets"], nlohmann::json::array({"re:.*lm_head$"}));
  for (const nlohmann::json& ignored : said["ignore"]) {
    EXPECT_EQ(ignored.get<std::string>().find("lm_head"), std::string::npos) << ignored;
  }
  const ModelFolder packed = ModelFolder::open(out().string());
  EXPECT_EQ(packed.find("language_model.lm_head.weight")->stored_type, "I8");
  EXPECT_LT(distance(logits_of(out()), logits_of(test::model_path("mistral3"))), 0.2);
}

TEST_P(QuantizeFormats, KeepFilesOfWeightsAndAllOthers) {
  const fs::path model = folder_.path() / "model";
  fs::copy(model_path("llama_sharded"), model);
  std::ofstream(model / "tokenizer.json") << "{}";
  std::ofstream(model / ".hidden") << "no";
  std::ofstream(model / "pytorch_model.bin") << "no";
  std::ofstream(model / "LICENSE") << "yes";
  quantize(model.string(), out(), {.format = GetParam().format, .group = 0});
  std::vector<std::string> expected = names_in(model);
  std::erase_if(expected, [](const std::string& name) {
    return name == ".hidden" || name == "pytorch_model.bin" || name == "golden.safetensors";
  });
  EXPECT_EQ(names_in(out()), expected);
  EXPECT_EQ(names_in(folder_.path()), (std::vector<std::string>{"model", "out"}));
  const ModelFolder plain = ModelFolder::open(model.string());
  const ModelFolder packed = ModelFolder::open(out().string());  // by its index
  EXPECT_LT(mean_error_of(plain, packed), GetParam().most * 2);
}

/// Channels whose activations are far larger than the others', as trained models have them: a few
/// numbers of each norm, and a few rows of V and up.
class Outliers {
 public:
  Outliers() : model_({.model_type = "mistral", .heads = 4, .kv_heads = 2}) {
    fs::copy(model_.path(), folder_.path() / "model");
    std::fstream file(path() / "model.safetensors",
                      std::ios::binary | std::ios::in | std::ios::out);
    const SafetensorsFile weights(fs::path(model_.path()) / "model.safetensors");
    for (const TensorInfo& tensor : weights.tensors()) {
      const bool rows =
          tensor.name.ends_with("v_proj.weight") || tensor.name.ends_with("up_proj.weight");
      if (!rows && !tensor.name.ends_with("layernorm.weight")) continue;
      const std::int64_t size = rows ? tensor.shape[1] : 1;
      for (const std::int64_t channel : {3, 40, 77}) {
        file.seekp(tensor.data - weights.file().data() + 2 * size * channel);
        for (std::int64_t k = size * channel; k < size * (channel + 1); ++k) {
          const BF16 value = to_bf16(25 * stored_value(tensor.data, DType::kBF16, k));
          file.write(reinterpret_cast<const char*>(&value), 2);
        }
      }
    }
  }
  fs::path path() const { return folder_.path() / "model"; }

 private:
  TinyModel model_;
  TemporaryFolder folder_;
};

TEST_F(Quantize, CalibrationRoundsLessWhatMattersMore) {
  const Outliers model;
  std::vector<TextSample> texts;
  const fs::path with = folder_.path() / "with";
  // (A tokenizer of bytes, so that there are texts.)
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    fs::copy(model_path("dendrite-echo") / name, model.path() / name);
  }
  for (int i = 0; i < 20; ++i) {
    texts.push_back({.text = "Some text " + std::to_string(i * 7919) + " of this kind."});
  }
  const QuantizeOptions options{.format = "int4", .group = 32, .threads = 1};
  quantize(model.path().string(), out(), options);
  QuantizeOptions calibrated = options;
  calibrated.calibration = texts;
  const Quantized done = quantize(model.path().string(), with, calibrated);
  EXPECT_GT(done.calibration_tokens, 400);
  EXPECT_EQ(done.places, 8);  // two norms, V and up, of two layers
  EXPECT_GT(done.scaled, 3);
  EXPECT_LT(done.error_ratio, 0.8);
  const Engine engine = Engine::load(model.path().string(), {.weights = false});
  const std::vector<Tokens> prompts{engine.encode("Some"), engine.encode("Some text 1583"),
                                    engine.encode("Some text 31 of this kin"),
                                    engine.encode("of this kind.")};
  const std::vector<float> plain = logits_of(model.path(), prompts);
  EXPECT_LT(distance(logits_of(with, prompts), plain),
            0.9 * distance(logits_of(out(), prompts), plain));
  // What is folded is folded on both sides.
  const fs::path eight = folder_.path() / "eight";
  const Quantized less = quantize(model.path().string(), eight,
                                  {.format = "int8", .calibration = texts, .threads = 1});
  EXPECT_GT(less.scaled, 3);
  EXPECT_LT(distance(logits_of(eight, prompts), plain), 0.1);
  // The same whatever the threads.
  calibrated.threads = 2;
  const fs::path again = folder_.path() / "again";
  quantize(model.path().string(), again, calibrated);
  const MappedFile one(with / "model.safetensors");
  const MappedFile two(again / "model.safetensors");
  EXPECT_TRUE(std::ranges::equal(one.bytes(), two.bytes()));
}

/// Gemma's norms multiply by 1 more than what is stored, and one of them is behind attention: what
/// they make is not scaled. Nor are experts, and what they share their norm with.
TEST_F(Quantize, CalibrationLeavesNormsOfOtherKindsAlone) {
  for (const auto& [name, places] : {std::pair{"gemma2", 6},  // V and up of three layers
                                     {"gpt_oss", 6},          // a norm and V
                                     {"granitemoe", 4}}) {
    const fs::path model = folder_.path() / name;
    fs::copy(test::model_path(name), model);
    for (const char* text : {"tokenizer.json", "tokenizer_config.json"}) {
      fs::copy(model_path("dendrite-echo") / text, model / text);
    }
    std::vector<TextSample> texts;
    for (int i = 0; i < 20; ++i) {
      texts.push_back({.text = "Some text " + std::to_string(i * 7919) + " of this kind."});
    }
    const fs::path to = folder_.path() / (std::string(name) + "-8");
    const Quantized done =
        quantize(model.string(), to, {.format = "int8", .calibration = texts, .threads = 1});
    EXPECT_EQ(done.places, places) << name;
    const Engine engine = Engine::load(model.string(), {.weights = false});
    const std::vector<Tokens> prompts{engine.encode("Some text 15"),
                                      engine.encode("of this kind.")};
    EXPECT_LT(distance(logits_of(to, prompts), logits_of(model, prompts)), 0.1) << name;
  }
}

TEST_F(Quantize, RowsThatAreNoWholeGroupsStayAsTheyAre) {
  const TinyModel model({});
  const Quantized done = quantize(model.path(), out(), {.format = "int4", .group = 128});
  EXPECT_EQ(done.group, 128);
  EXPECT_GT(done.matrices, 0);
  ASSERT_FALSE(done.left.empty());  // down of 192 columns, o of 64
  std::vector<std::string> ignored{"lm_head"};
  ignored.insert(ignored.end(), done.left.begin(), done.left.end());
  EXPECT_EQ(config_of(out())["quantization_config"]["ignore"], ignored);
  EXPECT_LT(distance(logits_of(out()), logits_of(model.path())), 0.3);
}

class QuantizeRefuses : public Quantize {
 protected:
  /// What is said; there is no folder, and nothing of one, afterwards.
  std::string error_of(const std::string& model, const QuantizeOptions& options) {
    const std::vector<std::string> before = names_in(folder_.path());
    try {
      quantize(model, out(), options);
    } catch (const Error& error) {
      EXPECT_EQ(names_in(folder_.path()), before);
      return error.what();
    }
    return "";
  }
};

TEST_F(QuantizeRefuses, WhatHasFewBitsAlready) {
  const TinyModel model({});
  const fs::path once = folder_.path() / "once";
  quantize(model.path(), once, {.format = "int8"});
  EXPECT_NE(error_of(once.string(), {.format = "int4"}).find("int8"), std::string::npos);
}

TEST_F(QuantizeRefuses, EmbeddingsThatGiveTheLogits) {
  const TinyModel model({});
  const std::string error =
      error_of(model.path(), {.format = "int8", .output_quantization = "int8"});
  EXPECT_NE(error.find("config.json: the embeddings give the logits"), std::string::npos) << error;
  EXPECT_NE(error_of(model.path(), {.format = "int8", .output_quantization = "int4"})
                .find("expected fp8, int8 or nothing"),
            std::string::npos);
}

TEST_F(QuantizeRefuses, AFolderThatIsThere) {
  const TinyModel model({});
  fs::create_directory(out());
  EXPECT_NE(error_of(model.path(), {.format = "int8"}).find("is there already"), std::string::npos);
  fs::remove(out());
  std::ofstream(out()) << "a file";
  EXPECT_NE(error_of(model.path(), {.format = "int8"}).find("is there already"), std::string::npos);
}

TEST_F(QuantizeRefuses, WhatIsNoNumber) {
  const TinyModel model({});
  const fs::path path = fs::path(model.path()) / "model.safetensors";
  const SafetensorsFile weights(path);
  const TensorInfo& tensor = *weights.find("model.layers.1.mlp.up_proj.weight");
  std::fstream file(path, std::ios::binary | std::ios::in | std::ios::out);
  file.seekp(tensor.data - weights.file().data() + 100);
  file.write("\xff\x7f", 2);  // NaN
  file.close();
  for (const char* format : {"fp8", "int8", "int4"}) {
    EXPECT_NE(error_of(model.path(), {.format = format}).find("model.layers.1.mlp.up_proj.weight"),
              std::string::npos);
  }
}

TEST_F(QuantizeRefuses, OptionsThatMeanNothing) {
  const TinyModel model({});
  EXPECT_NE(error_of(model.path(), {.format = "int5"}), "");
  EXPECT_NE(error_of(model.path(), {.format = "int4", .group = 48}), "");
  EXPECT_NE(error_of(model.path(), {.format = "fp8", .group = 128}), "");
  EXPECT_NE(error_of((folder_.path() / "nothing").string(), {.format = "fp8"}), "");
}

TEST_F(QuantizeRefuses, ToGoOnWhenItIsCancelled) {
  const TinyModel model({});
  std::stop_source stop;
  const Quantized done =
      quantize(model.path(), out(),
               {.format = "int8",
                .cancel = stop.get_token(),
                .on_progress = [&](const std::string&, std::int64_t at, std::int64_t) {
                  if (at > 0) stop.request_stop();
                }});
  EXPECT_TRUE(done.cancelled);
  EXPECT_TRUE(names_in(folder_.path()).empty());
}

}  // namespace
}  // namespace dendrite::test
