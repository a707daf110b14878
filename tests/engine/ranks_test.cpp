// One model over several ranks: what it says is what one device says but for the order of some
// sums, and the law holds there too (fork_replay_test.cpp and random_tree_test.cpp have ranks).
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <ostream>
#include <string>
#include <utility>
#include <vector>

#include "support/engine_support.h"
#include "support/temporary_folder.h"

namespace dendrite::test {
namespace {

Engine load_ranks(const std::string& model, int ranks, EngineOptions options = {}) {
  options.devices = ranks_on_one(ranks);
  options.kv_tokens = 4096;
  options.threads = 1;
  options.beyond_positions = true;
  return Engine::load(model_path(model).string(), options);
}

std::string why_not(const std::string& model, int ranks, EngineOptions options = {}) {
  return error_of([&] { load_ranks(model, ranks, std::move(options)); });
}

class Ranks : public ::testing::TestWithParam<const char*> {};

TEST_P(Ranks, SayWhatOneDeviceSays) {
  const Engine alone = load(GetParam(), {.dtype = "f32"}, "");
  const Engine shared = load_ranks(GetParam(), 2, {.dtype = "f32"});
  EXPECT_EQ(shared.info().parameters, alone.info().parameters);
  const Tokens prompt = Random(3).tokens(150, alone.info().vocab);
  const auto logits = [&](const Engine& engine) {
    Session session(engine);
    Branch branch = session.prefill(std::span(prompt));
    return logits_of(branch);
  };
  const std::vector<float> expected = logits(alone), got = logits(shared);
  ASSERT_EQ(got.size(), expected.size());
  double squares = 0, worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    squares += expected[i] * expected[i];
    worst = std::max<double>(worst, std::abs(got[i] - expected[i]));
  }
  EXPECT_LT(worst, 1e-4 * std::sqrt(squares / static_cast<double>(got.size())));
}

/// The families whose layers all have shares: norms behind parts, q, k and v as one tensor, queries
/// that grow, windows, heads that are normed, embeddings that give the logits.
INSTANTIATE_TEST_SUITE_P(Models, Ranks,
                         ::testing::Values("llama2", "mistral", "mistral_swa", "phi3", "glm4",
                                           "ministral3", "llama_defaults", "dendrite-24"));

TEST(RanksOption, TakesDevicesByTheirIndices) {
  const EngineInfo alone = load("mistral", {}, "").info();
  const EngineInfo two = load_ranks("mistral", 2).info();
  EXPECT_EQ(two.device, "cpu");
  EXPECT_EQ(two.device_name, alone.device_name + ", 2 ranks");
  EXPECT_EQ(two.numerics_key, alone.numerics_key + "/2_ranks");
  EXPECT_EQ(two.kv_token_bytes, alone.kv_token_bytes);
  EXPECT_EQ(load_ranks("mistral", 1).info().numerics_key, alone.numerics_key);
  const auto error = [](const std::string& device, std::vector<int> devices) {
    return error_of([&] {
      Engine::load(model_path("mistral").string(),
                   {.device = device, .devices = std::move(devices), .threads = 1});
    });
  };
  EXPECT_EQ(error("cpu", {0, 1}),
            "devices have 1; expected indices of device cpu, which is 0 alone");
  EXPECT_EQ(error("cuda", {0, -1}), "devices have -1; expected indices of GPUs, from 0 on");
  EXPECT_EQ(error("cuda:1", {0, 1}),
            "device is cuda:1 and devices are given, too; expected device cuda with them");
  EXPECT_EQ(error("cpu", ranks_on_one(9)), "devices are 9; expected at most 8");
}

TEST(RanksOption, RefusesWhatHasNoShares) {
  const std::vector<std::pair<const char*, const char*>> models{
      {"qwen3_5", "recurrent layers"},
      {"deepseek_v3", "attention through a latent"},
      {"qwen3_moe", "mixtures of experts"},
      {"olmo2", "norms of all heads together"},
      {"gemma4_text", "inputs of single layers"},
      {"tinyllama", "heads of keys and values (1)"}};
  for (const auto& [model, part] : models) {
    EXPECT_EQ(why_not(model, 2), "the model has " + std::string(part) +
                                     ", which 2 devices do not share; expected one device for it, "
                                     "or another number of them");
  }
  EXPECT_NE(why_not("mistral", 3).find("heads (4)"), std::string::npos);
  EXPECT_NE(why_not("mistral", 2, {.drafter = "mtp"}).find("reads along on one device"),
            std::string::npos);
}

/// Pages of ranks are in the layout that every device has, and the same number of ranks goes on
/// from them; another computes K and V afresh.
TEST(RanksSnapshots, GoOnWithTheSameBits) {
  const Engine engine = load_ranks("mistral", 2);
  Session session(engine, {.seed = 4});
  const Tokens prompt = Random(8).tokens(70, 256);
  Branch branch = session.prefill(std::span(prompt));
  const std::vector<std::byte> saved = session.snapshot();
  const DecodeParams params{.max_tokens = 20, .temperature = 1.0, .ignore_eos = true};
  const Tokens expected = session.decode(branch, params).ids;
  const Engine same = load_ranks("mistral", 2);
  Restored restored = same.restore(saved);
  EXPECT_TRUE(restored.kv_restored) << restored.note;
  EXPECT_EQ(restored.session.decode(restored.branches.front(), params).ids, expected);
  Restored other = load("mistral", {}, "").restore(saved);
  EXPECT_FALSE(other.kv_restored);
  EXPECT_EQ(other.session.decode(other.branches.front(), params).ids.size(), 20u);
}

/// Every rank moves its heads: K and V are those that one device moves, but for the order of sums.
TEST(RanksCompose, MovesHeadsOnEveryRank) {
  const auto composed = [](const Engine& engine) {
    Session session(engine);
    const Tokens prompt = Random(2).tokens(90, 100);
    Branch from = session.prefill(std::span(prompt));
    const std::vector<Piece> pieces{Piece::tokens(Random(6).tokens(21, 100)),
                                    Piece::span(from, 40, 90)};
    Composed out = session.compose(pieces);
    EXPECT_EQ(out.report.moved + out.report.repaired, 50);
    EXPECT_GT(out.report.moved, 10);
    return kv_of(out.branch);
  };
  const std::vector<float> got = composed(load_ranks("dendrite-24", 2, {.dtype = "f32"}));
  const std::vector<float> expected = composed(load("dendrite-24", {.dtype = "f32"}, ""));
  ASSERT_EQ(got.size(), expected.size());
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    worst = std::max<double>(worst, std::abs(got[i] - expected[i]) / (1 + std::abs(expected[i])));
  }
  EXPECT_LT(worst, 1e-3);
}

/// A random model on GPUs.
struct GpuModel {
  const char* quantization = "";
  const char* type = "mistral";
  int dim = 512;
  bool has_biases = false;
};
void PrintTo(const GpuModel& model, std::ostream* out) {
  *out << model.type << ' ' << model.dim << ' ' << model.quantization;
}

/// Where ranks are changes no bit: in prompts, which run op by op, and in steps, which are
/// recorded, of plain weights and packed ones, whose halves are whole groups.
class RanksOnGpus : public ::testing::TestWithParam<GpuModel> {
 protected:
  void SetUp() override {
    const std::string biases = GetParam().has_biases ? "true" : "false";
    std::ofstream(folder_.path() / "config.json")
        << R"({"model_type": ")" << GetParam().type << R"(", "hidden_size": )" << GetParam().dim
        << R"(, "attention_bias": )" << biases << R"(, "mlp_bias": )" << biases
        << R"(, "intermediate_size": 1024,
               "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4,
               "head_dim": 64, "vocab_size": 320, "max_position_embeddings": 2048,
               "rms_norm_eps": 1e-5, "rope_theta": 10000.0, "tie_word_embeddings": false,
               "sliding_window": null, "torch_dtype": "bfloat16"})";
  }
  Engine load_on(std::vector<int> devices) const {
    EngineOptions options;
    options.device = "cuda";
    options.devices = std::move(devices);
    options.quantization = GetParam().quantization;
    options.kv_tokens = 16384;
    options.load_format = "dummy";
    return Engine::load(folder_.path().string(), options);
  }

  TemporaryFolder folder_;
};

TEST_P(RanksOnGpus, HaveTheSameBitsOnOneAsOnTwo) {
  if (!on_cuda()) GTEST_SKIP() << "no GPU";
  const auto results = [&](std::vector<int> devices) {
    const Engine engine = load_on(std::move(devices));
    Session session(engine, {.seed = 2});
    const Tokens prompt = Random(3).tokens(400, engine.info().vocab);
    std::vector<Branch> branches;
    branches.push_back(session.prefill(std::span(prompt)));
    std::vector<float> out = logits_of(branches.front());
    const auto decode = [&](std::size_t count) {
      while (branches.size() < count) branches.push_back(branches.front().fork());
      std::vector<Branch*> all;
      for (Branch& branch : branches) all.push_back(&branch);
      session.decode(all, {.max_tokens = 12, .temperature = 1.0, .ignore_eos = true});
      for (Branch& branch : branches) {
        const std::vector<float> logits = logits_of(branch);
        out.insert(out.end(), logits.begin(), logits.end());
      }
    };
    for (const std::size_t count : {1, 2, 8, 33, 128}) decode(count);
    return out;
  };
  if (!error_of([&] { load_on({1}); }).empty()) GTEST_SKIP() << "one GPU";
  EXPECT_EQ(results({0, 0}), results({0, 1}));
}

INSTANTIATE_TEST_SUITE_P(Weights, RanksOnGpus,
                         ::testing::Values(GpuModel{""}, GpuModel{"fp8"}, GpuModel{"int8"},
                                           GpuModel{"int4"}));

/// Rows of several blocks of a sum and of no whole number of them, biases, and norms between a sum
/// and what it is added to.
INSTANTIATE_TEST_SUITE_P(Shapes, RanksOnGpus,
                         ::testing::Values(GpuModel{"", "llama", 2560, true},
                                           GpuModel{"fp8", "llama", 5120, true},
                                           GpuModel{"", "llama", 576, true},
                                           GpuModel{"", "glm4", 512, true}));

}  // namespace
}  // namespace dendrite::test
