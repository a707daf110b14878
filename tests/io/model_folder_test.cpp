#include "io/model_folder.h"

#include <cstring>

#include "test_files.h"

namespace dendrite {
namespace {

namespace fs = std::filesystem;
using test::safetensors_of;
using test::ScopedVariable;
using test::TempFolder;

const std::string kCommit = "0123456789abcdef0123456789abcdef01234567";
const std::string kOther = "ffffffffffffffffffffffffffffffffffffffff";

std::string index_of(const std::vector<std::pair<std::string, std::string>>& places) {
  std::string map;
  for (const auto& [tensor, shard] : places) {
    map += (map.empty() ? "\"" : ",\"") + tensor + "\":\"" + shard + "\"";
  }
  return "{\"metadata\":{\"total_size\":1},\"weight_map\":{" + map + "}}";
}

ModelFolder open(const TempFolder& folder) {
  return ModelFolder::open(folder.path().string());
}

TEST(ModelFolder, OpensASingleFile) {
  const TempFolder temp;
  temp.write("model.safetensors", safetensors_of({"b", "a"}));
  temp.write("pytorch_model.bin", "ignored");
  ModelFolder moved = open(temp);
  const ModelFolder folder = std::move(moved);
  EXPECT_EQ(folder.names(), (std::vector<std::string_view>{"a", "b"}));
  EXPECT_EQ(folder.total_bytes(), 8);
  EXPECT_TRUE(folder.has_file("pytorch_model.bin"));
  EXPECT_FALSE(folder.has_file("config.json"));
  float value = 0;
  std::memcpy(&value, folder.require("a", {1}).data, 4);
  EXPECT_EQ(value, 1.0f);
  folder.prefetch(3);
  EXPECT_EQ(folder.find("c"), nullptr);
  EXPECT_ERROR(folder.require("c", {2, 3}),
               "model.safetensors: holds no tensor \"c\", expected one of shape [2, 3]");
  EXPECT_ERROR(folder.require("a", {1, 1}), "tensor \"a\" has shape [1], expected [1, 1]");
  EXPECT_ERROR(folder.require_file("config.json"), "config.json: no such file");
}

TEST(ModelFolder, IsACheckpointOfTextsAndMatrices) {
  const TempFolder temp;
  temp.write("config.json", "{}");
  temp.write(
      "model.safetensors",
      test::safetensors(R"({"m":{"dtype":"BF16","shape":[2,2],"data_offsets":[0,8]},)"
                        R"("v":{"dtype":"F16","shape":[2],"data_offsets":[8,12]},)"
                        R"("x":{"dtype":"F64","shape":[1,1],"data_offsets":[12,20]}})",
                        std::string("\0\0\x80\x3f\0\x40\x80\xbf\0\x3c\0\xc0\0\0\0\0\0\0\0\0", 20)));
  const ModelFolder folder = open(temp);
  const Checkpoint& checkpoint = folder;
  EXPECT_TRUE(checkpoint.has_text("config.json"));
  EXPECT_EQ(checkpoint.text("config.json", 2), "{}");
  EXPECT_ERROR(checkpoint.text("config.json", 1), "config.json: has 2 bytes, expected at most 1");
  EXPECT_FALSE(checkpoint.has_text("tokenizer.json"));
  EXPECT_ERROR(checkpoint.text("tokenizer.json", 9), "tokenizer.json: no such file");

  const StoredMatrix matrix = checkpoint.matrix("m", 2, 2);
  EXPECT_EQ(matrix.format->name(), "bf16");
  EXPECT_EQ(matrix.name, "m");
  EXPECT_EQ(matrix.file, (temp.path() / "model.safetensors").string());
  std::vector<float> row(2);
  matrix.format->widen(matrix, 1, 0, row);
  EXPECT_EQ(row, (std::vector<float>{2, -1}));
  EXPECT_EQ(checkpoint.vector("v", 2), (std::vector<float>{1, -2}));
  EXPECT_ERROR(checkpoint.matrix("n", 2, 2), "holds no tensor \"n\", expected one of shape [2, 2]");
  EXPECT_ERROR(checkpoint.matrix("m", 2, 3), "tensor \"m\" has shape [2, 2], expected [2, 3]");
  EXPECT_ERROR(checkpoint.matrix("x", 1, 1), "tensor \"x\" is stored as F64, expected F32");
  EXPECT_ERROR(checkpoint.vector("v", 3), "tensor \"v\" has shape [2], expected [3]");
}

TEST(ModelFolder, OpensTheShardsOfAnIndex) {
  const TempFolder temp;
  temp.write("model-00001-of-00002.safetensors", safetensors_of({"a", "c"}));
  temp.write("model-00002-of-00002.safetensors", safetensors_of({"b"}));
  temp.write("model-00003-of-00002.safetensors",
             "not a safetensors file, and not named by the index");
  temp.write("model.safetensors.index.json", index_of({{"a", "model-00001-of-00002.safetensors"},
                                                       {"b", "model-00002-of-00002.safetensors"},
                                                       {"c", "model-00001-of-00002.safetensors"}}));
  const ModelFolder folder = open(temp);
  EXPECT_EQ(folder.names(), (std::vector<std::string_view>{"a", "b", "c"}));
  EXPECT_TRUE(folder.find("b")->file.ends_with("model-00002-of-00002.safetensors"));
  EXPECT_TRUE(folder.warnings().empty());
}

TEST(ModelFolder, SaysWhatIsWrongWithAnIndex) {
  const TempFolder temp;
  const auto with_index = [&](const std::string& index) {
    temp.write("model.safetensors.index.json", index);
    return open(temp);
  };
  temp.write("s1.safetensors", safetensors_of({"a"}));
  temp.write("s2.safetensors", safetensors_of({"a", "b"}));
  EXPECT_ERROR(with_index(index_of({{"a", "s1.safetensors"}, {"b", "s3.safetensors"}})),
               "s3.safetensors: is missing, a shard that model.safetensors.index.json names (for 1 "
               "tensors)");
  EXPECT_ERROR(
      with_index(index_of({{"a", "s1.safetensors"}, {"z", "s1.safetensors"}})),
      "s1.safetensors: holds no tensor \"z\", which model.safetensors.index.json puts there");
  EXPECT_ERROR(with_index(index_of({{"a", "s1.safetensors"}, {"b", "s2.safetensors"}})),
               "tensor \"a\" is in two shards, s1.safetensors and s2.safetensors");
  EXPECT_ERROR(with_index(R"({"weight_map":{"a":"s1.safetensors","a":"s2.safetensors"}})"),
               "is written twice");
  EXPECT_ERROR(with_index(R"({"weight_map":{}})"), "\"weight_map\" is empty");
  EXPECT_ERROR(with_index("{}"), "\"weight_map\" is missing, expected an object");
  EXPECT_ERROR(with_index(R"({"weight_map":{"a":1}})"), "\"weight_map.a\" is 1, expected a string");
  for (const char* shard : {"../s1.safetensors", "/s1.safetensors", "", "s1.bin"}) {
    EXPECT_ERROR(with_index(index_of({{"a", shard}})),
                 "expected the name of a .safetensors file of the same folder");
  }
  EXPECT_ERROR(with_index("{"), "model.safetensors.index.json: is not valid JSON");
}

TEST(ModelFolder, PrefersTheSingleFileToAStaleIndex) {
  const TempFolder temp;
  temp.write("model.safetensors", safetensors_of({"a"}));
  temp.write("s1.safetensors", safetensors_of({"old"}));
  temp.write("model.safetensors.index.json",
             index_of({{"old", "s1.safetensors"}, {"b", "s2.safetensors"}}));
  const ModelFolder folder = open(temp);
  EXPECT_EQ(folder.names(), (std::vector<std::string_view>{"a"}));
  ASSERT_EQ(folder.warnings().size(), 1u);
  EXPECT_NE(folder.warnings()[0].find("names \"s2.safetensors\", which is missing"),
            std::string::npos);
}

TEST(ModelFolder, SaysWhatAFolderWithoutSafetensorsHolds) {
  const TempFolder temp;
  EXPECT_ERROR(open(temp), "has no model.safetensors and no model.safetensors.index.json");
  temp.write("model-00001-of-00002.safetensors", "");
  EXPECT_ERROR(open(temp), "it holds weights only as *.safetensors, which need the index");
  fs::remove(temp.path() / "model-00001-of-00002.safetensors");
  temp.write("pytorch_model.bin", "x");
  EXPECT_ERROR(open(temp), "it holds weights only as *.bin, which are not read");
  EXPECT_EQ(ModelFolder::open(temp.path().string(), ModelFolder::Weights::kSkip).names().size(),
            0u);
  EXPECT_ERROR(ModelFolder::open((temp.path() / "pytorch_model.bin").string()),
               "is a file, expected a model folder");
  EXPECT_ERROR(ModelFolder::open(""), "the name is empty");
}

/// A cache of one model with one snapshot, whose files are links to blobs as the hub makes them.
class HubCache : public testing::Test {
 protected:
  void SetUp() override {
    temp_.write("hub/models--org--name/blobs/b1", safetensors_of({"a"}));
    fs::create_directories(snapshot());
    fs::create_symlink("../../blobs/b1", snapshot() / "model.safetensors");
    temp_.write("hub/models--org--name/refs/main", kCommit + "\n");
  }
  fs::path repository() const { return temp_.path() / "hub" / "models--org--name"; }
  fs::path snapshot() const { return repository() / "snapshots" / kCommit; }

  TempFolder temp_;
  ScopedVariable home_{"HOME", (temp_.path() / "home").string()};
  ScopedVariable xdg_{"XDG_CACHE_HOME", std::nullopt};
  ScopedVariable hf_home_{"HF_HOME", std::nullopt};
  ScopedVariable old_cache_{"HUGGINGFACE_HUB_CACHE", std::nullopt};
  ScopedVariable cache_{"HF_HUB_CACHE", (temp_.path() / "hub").string()};
};

TEST_F(HubCache, FindsAModelByItsId) {
  const ModelFolder folder = ModelFolder::open("org/name");
  EXPECT_EQ(folder.path(), snapshot());
  EXPECT_EQ(folder.names(), (std::vector<std::string_view>{"a"}));
  EXPECT_TRUE(folder.warnings().empty());
  EXPECT_EQ(resolve_model("org/name").commit, kCommit);
}

TEST_F(HubCache, FollowsLinksFromBlobsIntoASharedStore) {
  fs::create_directories(temp_.path() / "store");
  fs::rename(repository() / "blobs" / "b1", temp_.path() / "store" / "x");
  fs::create_symlink(temp_.path() / "store" / "x", repository() / "blobs" / "b1");
  EXPECT_EQ(ModelFolder::open("org/name").names().size(), 1u);
}

TEST_F(HubCache, FindsIdsOfOnePart) {
  temp_.write("hub/models--gpt2/refs/main", kCommit);
  temp_.write("hub/models--gpt2/snapshots/" + kCommit + "/model.safetensors",
              safetensors_of({"a"}));
  EXPECT_EQ(ModelFolder::open("gpt2").names().size(), 1u);
}

TEST_F(HubCache, AnExistingFolderWins) {
  const fs::path before = fs::current_path();
  fs::current_path(temp_.path());
  temp_.write("org/name/model.safetensors", safetensors_of({"local", "b"}));
  const std::size_t tensors = ModelFolder::open("org/name").names().size();
  fs::current_path(before);
  EXPECT_EQ(tensors, 2u);
}

TEST_F(HubCache, RevisionsAreBranchesTagsOrCommits) {
  temp_.write("hub/models--org--name/refs/refs/pr/1", kCommit);
  for (const std::string& revision : {kCommit, std::string("refs/pr/1"), std::string("main")}) {
    EXPECT_EQ(resolve_model("org/name@" + revision).path, snapshot()) << revision;
  }
  EXPECT_ERROR(resolve_model("org/name@v2"), "hf download org/name --revision v2");
  EXPECT_ERROR(resolve_model("org/name@" + kOther), kOther);
  EXPECT_ERROR(resolve_model("org/name@../../x"), "no such folder");
}

TEST_F(HubCache, UsesTheOnlySnapshotWithAWarning) {
  fs::remove(repository() / "refs" / "main");
  const ModelLocation location = resolve_model("org/name");
  EXPECT_EQ(location.path, snapshot());
  ASSERT_EQ(location.warnings.size(), 1u);
  EXPECT_NE(location.warnings[0].find("using the only snapshot, " + kCommit), std::string::npos);
  fs::create_directories(repository() / "snapshots" / kOther);
  EXPECT_ERROR(resolve_model("org/name"), "revision \"main\" is not in the Hugging Face cache");
}

TEST_F(HubCache, SaysWhatWasLookedForAndHowToGetIt) {
  const std::string text = test::error_of([] { resolve_model("org/other"); });
  EXPECT_NE(text.find("model \"org/other\": no such folder, and not in the Hugging Face cache"),
            std::string::npos);
  EXPECT_NE(text.find((temp_.path() / "hub/models--org--other").string()), std::string::npos)
      << text;
  EXPECT_NE(text.find("hf download org/other"), std::string::npos);
  temp_.write("hub/models--org--name/refs/main", kOther);
  EXPECT_ERROR(resolve_model("org/name"), "its snapshot is not in the Hugging Face cache");
  temp_.write("hub/models--org--name/refs/main", "not a commit");
  EXPECT_ERROR(resolve_model("org/name"),
               "holds \"not a commit\", expected a commit of 40 hex digits");
  for (const char* name : {"./org/name", "a/b/c", "../name", "org/na me", "org--x/name",
                           "/org/name", "org/", "@main", "org/name@", "-org/name"}) {
    EXPECT_ERROR(resolve_model(name), "no such folder (and not a Hugging Face id: org/name)")
        << name;
  }
}

TEST_F(HubCache, SaysHowToCompleteADownload) {
  temp_.write("hub/models--org--name/snapshots/" + kCommit + "/model.safetensors.index.json",
              index_of({{"a", "s1.safetensors"}}));
  fs::remove(snapshot() / "model.safetensors");
  EXPECT_ERROR(ModelFolder::open("org/name"), "s1.safetensors: is missing, a shard");
  EXPECT_ERROR(ModelFolder::open("org/name"), "to complete it: hf download org/name");
  fs::create_symlink("../../blobs/gone", snapshot() / "config.json");
  const auto folder = ModelFolder::open("org/name", ModelFolder::Weights::kSkip);
  EXPECT_ERROR(folder.require_file("config.json"), "is a link to a file that is missing");
  temp_.write("hub/models--org--name/.no_exist/" + kCommit + "/tokenizer.json", "");
  EXPECT_ERROR(folder.require_file("tokenizer.json"), "(the repository org/name has no such file)");
}

TEST_F(HubCache, IsWhereTheEnvironmentSays) {
  EXPECT_EQ(hub_cache_folder(), temp_.path() / "hub");
  const ScopedVariable cache("HF_HUB_CACHE", std::nullopt);
  EXPECT_EQ(hub_cache_folder(), temp_.path() / "home/.cache/huggingface/hub");
  const ScopedVariable xdg("XDG_CACHE_HOME", "/xdg");
  EXPECT_EQ(hub_cache_folder(), "/xdg/huggingface/hub");
  const ScopedVariable hf_home("HF_HOME", "~/hf");
  EXPECT_EQ(hub_cache_folder(), temp_.path() / "home/hf/hub");
  const ScopedVariable old("HUGGINGFACE_HUB_CACHE", "/old");
  EXPECT_EQ(hub_cache_folder(), "/old");
  const ScopedVariable empty("HF_HUB_CACHE", "");
  EXPECT_EQ(hub_cache_folder(), "/old");
}

}  // namespace
}  // namespace dendrite
