#include "model/stored.h"

#include <gtest/gtest.h>

#include "dendrite/error.h"
#include "dendrite/model_files.h"
#include "io/open_checkpoint.h"
#include "support/golden_data.h"
#include "support/safetensors_writer.h"
#include "support/temporary_folder.h"

namespace dendrite {
namespace {

namespace fs = std::filesystem;

TEST(StoredWeights, AreCountedByFormat) {
  const auto stored = stored_weights(test::model_path("llama_mixed").string());
  const auto files =
      open_checkpoint(test::model_path("llama_mixed").string(), WeightFiles::kRequire);
  std::int64_t tensors = 0, parameters = 0, bytes = 0;
  for (const StoredWeights& one : stored) {
    tensors += one.tensors;
    parameters += one.parameters;
    bytes += one.bytes;
    EXPECT_EQ(one.bytes, one.parameters * (one.format == "f32" ? 4 : 2)) << one.format;
  }
  EXPECT_GE(stored.size(), 2u);
  EXPECT_TRUE(std::ranges::is_sorted(stored, std::greater<>(), &StoredWeights::bytes));
  EXPECT_EQ(tensors, std::ssize(files->names()));
  EXPECT_EQ(bytes, files->total_bytes());
}

TEST(StoredWeights, CountWhatGoesWithATensorInItsBytes) {
  const fs::path from = test::model_path("tinyllama");
  const auto files = open_checkpoint(from.string(), WeightFiles::kRequire);
  const TemporaryFolder folder;
  fs::copy_file(from / "config.json", folder.path() / "config.json");
  test::SafetensorsWriter writer;
  std::int64_t tensors = 0, rows = 0, values = 0;
  const std::vector<std::byte> zeros(1 << 20);
  for (const std::string_view name : files->names()) {
    const TensorInfo& tensor = *files->find(name);
    const auto bytes = static_cast<std::size_t>(tensor.size_bytes);
    if (name.find("mlp.") == std::string_view::npos) {
      writer.add(std::string(name), "BF16", tensor.shape, {tensor.data, bytes});
      continue;
    }
    writer.add(std::string(name), "I8", tensor.shape, std::span(zeros).first(bytes / 2));
    writer.add(std::string(name) + "_scale", "F32", {tensor.shape[0], 1},
               std::span(zeros).first(static_cast<std::size_t>(4 * tensor.shape[0])));
    ++tensors;
    rows += tensor.shape[0];
    values += tensor.shape[0] * tensor.shape[1];
  }
  writer.write(folder.path() / "model.safetensors");
  const auto stored = stored_weights(folder.path().string());
  const auto int8 = std::ranges::find(stored, "int8", &StoredWeights::format);
  ASSERT_NE(int8, stored.end());
  EXPECT_EQ(int8->tensors, tensors);
  EXPECT_EQ(int8->parameters, values);
  EXPECT_EQ(int8->bytes, values + 4 * rows);
}

TEST(StoredWeights, AreNoneWithoutWeights) {
  const TemporaryFolder folder;
  fs::copy_file(test::model_path("tinyllama") / "config.json", folder.path() / "config.json");
  EXPECT_TRUE(stored_weights(folder.path().string()).empty());
}

TEST(ModelText, IsThatOfAFile) {
  const std::string folder = test::model_path("tinyllama").string();
  EXPECT_NE(model_text(folder, "config.json").value_or("").find("\"llama\""), std::string::npos);
  EXPECT_FALSE(model_text(folder, "none.json"));
  EXPECT_THROW((void)model_text(folder, "../tinyllama/config.json"), Error);
}

}  // namespace
}  // namespace dendrite
