// Models as GGUF files beside the folders that they were made of.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "dendrite/dendrite.h"
#include "dendrite/model_files.h"
#include "io/gguf_model.h"
#include "support/gguf_logits.h"
#include "support/gguf_of_folder.h"
#include "support/golden_data.h"
#include "support/paths.h"
#include "support/safetensors_writer.h"
#include "support/temporary_folder.h"

namespace dendrite {
namespace {

namespace fs = std::filesystem;

using test::expect_same_logits;
using test::gguf_options;
using test::logits_of;

class GgufModels : public testing::Test {
 protected:
  /// The folder's GGUF file, its matrices of this type.
  std::string file_of(const fs::path& folder, const std::string& type) {
    const fs::path file = temp_.path() / (folder.filename().string() + type + ".gguf");
    test::GgufOfFolder(folder, type).write()[0].write(file);
    return file.string();
  }

  /// A folder with the texts of another and no weights yet.
  fs::path copy_of_texts(const fs::path& folder) {
    const fs::path out = temp_.path() / folder.filename();
    fs::create_directory(out);
    for (const char* text : {"config.json", "tokenizer.json", "tokenizer_config.json"}) {
      fs::copy_file(folder / text, out / text);
    }
    return out;
  }

  /// A copy of the folder with its weights in f16.
  fs::path folder_in_f16(const fs::path& folder) {
    fs::path out = copy_of_texts(folder);
    const ModelFolder files = ModelFolder::open(folder.string());
    test::SafetensorsWriter writer;
    for (const std::string_view name : files.names()) {
      const TensorInfo& tensor = *files.find(name);
      const std::vector<float> values = numbers_of(tensor);
      std::vector<std::byte> halves(values.size() * 2);
      f16_format().narrow(values, halves.data());
      writer.add(std::string(name), "F16", tensor.shape, halves);
    }
    writer.write(out / "model.safetensors");
    return out;
  }

  TemporaryFolder temp_;
};

TEST_F(GgufModels, HaveTheBitsOfTheirFolders) {
  for (const char* name :
       {"tinyllama", "llama_bias", "llama_f16", "llama_f32", "llama_d24", "llama_mixed",
        "mistral_swa", "qwen2", "qwen3", "qwen3_bias", "qwen3_moe"}) {
    const fs::path folder = test::model_path(name);
    const std::string file = file_of(folder, "");
    expect_same_logits(file, folder.string(), "auto");
    expect_same_logits(file, folder.string(), "f32");
  }
}

TEST_F(GgufModels, OfShippedModelsHaveTheBitsOfTheirFoldersInEveryPlainType) {
  for (const char* name : {"dendrite-24", "dendrite-tools"}) {
    const fs::path folder = fs::path(DENDRITE_MODELS_DIR) / name;
    expect_same_logits(file_of(folder, "BF16"), folder.string(), "auto");
    expect_same_logits(file_of(folder, "F32"), folder.string(), "f32");
    const fs::path halves = folder_in_f16(folder);
    expect_same_logits(file_of(halves, ""), halves.string(), "auto");
  }
}

TEST_F(GgufModels, OfShippedModelsHaveTheirTokensAndTexts) {
  std::ifstream in(fs::path(DENDRITE_TEST_DATA) / "text" / "texts.json");
  const auto texts = nlohmann::json::parse(in);
  for (const char* name : {"dendrite-24", "dendrite-tools"}) {
    const fs::path folder = fs::path(DENDRITE_MODELS_DIR) / name;
    const Engine file = Engine::load(file_of(folder, ""), gguf_options("auto"));
    const Engine model = Engine::load(folder.string(), gguf_options("auto"));
    EXPECT_EQ(file.info().bos, model.info().bos);
    EXPECT_EQ(file.info().eos, model.info().eos);
    EXPECT_EQ(file.info().stored_dtype, model.info().stored_dtype);
    EXPECT_EQ(file.info().max_positions, model.info().max_positions);
    for (const auto& text : texts) {
      const auto ids = model.encode(text.get<std::string>());
      ASSERT_EQ(file.encode(text.get<std::string>()), ids) << text;
      ASSERT_EQ(file.decode(ids, false), model.decode(ids, false));
    }
    const std::string messages = R"([{"role": "user", "content": "4 7 8 8"}])";
    const std::string chat = model.render_chat(messages, {});
    EXPECT_EQ(file.render_chat(messages, {}), chat);
    const auto said = [&](const Engine& engine) {
      Session session(engine);
      Branch branch = session.prefill(engine.encode(chat, false));
      return session.decode(branch, {.max_tokens = 40}).text;
    };
    EXPECT_EQ(said(file), said(model));
  }
}

TEST_F(GgufModels, TakeRopeFactorsOfATensor) {
  const fs::path folder = test::model_path("llama3_tied");
  const Engine file = Engine::load(file_of(folder, ""), gguf_options("f32"));
  EXPECT_EQ(file.info().rope, "factors");
  const auto expected = logits_of(Engine::load(folder.string(), gguf_options("f32")));
  const auto got = logits_of(file);
  for (std::size_t i = 0; i < got.size(); ++i) {
    // Factors are rounded once more than the angles that config.json gives.
    EXPECT_NEAR(got[i], expected[i], 1e-4 * std::max(1.0F, std::abs(expected[i])));
  }
}

TEST_F(GgufModels, OfPackedTypesAreCloseToWhatTheyWereMadeOf) {
  const fs::path folder = fs::path(DENDRITE_MODELS_DIR) / "dendrite-24";
  const std::string path = file_of(folder, "Q8_0");
  const Engine file = Engine::load(path, gguf_options("f32"));
  const auto expected = logits_of(Engine::load(folder.string(), gguf_options("f32")));
  const auto got = logits_of(file);
  double off = 0, size = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    off += std::pow(got[i] - expected[i], 2);
    size += std::pow(expected[i], 2);
  }
  EXPECT_LT(std::sqrt(off / size), 0.02);
  const auto stored = stored_weights(path);
  ASSERT_EQ(stored.size(), 2u);
  EXPECT_EQ(stored[0].format, "q8_0");
  EXPECT_EQ(stored[0].tensors, 8 * 7 + 1);
  EXPECT_EQ(stored[0].bytes * 32, stored[0].parameters * 34);
  EXPECT_EQ(stored[1].format, "f32");
  EXPECT_EQ(stored[1].tensors, 17);
}

TEST_F(GgufModels, OfPackedTypesAreInF32WhatTheirValuesAreToTheBit) {
  const fs::path folder = fs::path(DENDRITE_MODELS_DIR) / "dendrite-tools";
  const std::string path = file_of(folder, "Q8_0");
  const fs::path values_of_it = copy_of_texts(folder);
  const GgufModel file(path);
  test::SafetensorsWriter writer;
  for (const std::string_view name : file.names()) {
    const std::vector<std::int64_t>& shape = file.find(name)->shape;
    std::vector<float> values;
    if (shape.size() == 1) values = file.vector(name, shape[0]);
    for (const StoredMatrix& part :
         shape.size() == 1 ? std::vector<StoredMatrix>{} : file.stacked(name, shape[0], shape[1])) {
      for (std::int64_t row = 0; row < part.rows; ++row) {
        std::vector<float> widened(static_cast<std::size_t>(part.cols));
        part.format->widen(part, row, 0, widened);
        values.insert(values.end(), widened.begin(), widened.end());
      }
    }
    writer.add(std::string(name), "F32", shape, std::as_bytes(std::span(values)));
  }
  writer.write(values_of_it / "model.safetensors");
  expect_same_logits(path, values_of_it.string(), "f32");
}

TEST_F(GgufModels, AreReadFromTheFilesTheyWereSplitInto) {
  const fs::path folder = test::model_path("tinyllama");
  auto parts = test::GgufOfFolder(folder, "").write(3);
  const auto name = [&](int part) {
    return temp_.path() / ("m-0000" + std::to_string(part) + "-of-00003.gguf");
  };
  for (int i = 0; i < 3; ++i) parts[static_cast<std::size_t>(i)].write(name(i + 1));
  expect_same_logits(name(1).string(), folder.string(), "auto");

  const auto error_of = [](const fs::path& file) -> std::string {
    try {
      const GgufModel model(file);
    } catch (const Error& error) {
      return error.what();
    }
    return "none";
  };
  EXPECT_NE(error_of(name(2)).find("expected the first, \"m-00001-of-00003.gguf\""),
            std::string::npos)
      << error_of(name(2));
  fs::copy_file(name(2), name(3), fs::copy_options::overwrite_existing);
  EXPECT_NE(error_of(name(1)).find("key \"split.no\" is 1, expected 2"), std::string::npos)
      << error_of(name(1));
  fs::remove(name(3));
  EXPECT_NE(error_of(name(1)).find("cannot open"), std::string::npos);
  fs::rename(name(1), temp_.path() / "other.gguf");
  EXPECT_NE(error_of(temp_.path() / "other.gguf").find("expected a name that ends with"),
            std::string::npos);
}

}  // namespace
}  // namespace dendrite
