// K and V in FP8 (EngineOptions::kv_dtype): what they take, where they are refused, and that what
// an engine does with pages holds for them, too. (fork_replay_test, random_tree_test and the tests
// of compositions have cases of their own, golden_test says how exact they are.)
#include <gtest/gtest.h>

#include <limits>

#include "support/engine_support.h"

namespace dendrite {
namespace {

using test::bits_of;
using test::greedy;
using test::load;
using test::Random;
using test::same_bits;
using test::Tokens;

class Fp8Kv : public ::testing::Test {
 protected:
  static Engine engine(EngineOptions options = {}) {
    options.dtype = "bf16";
    options.kv_dtype = "fp8";
    return load("tinyllama", options);
  }
  static test::Bits replayed(const Tokens& tokens) {
    return test::replay(engine({.prefix_index = false}), tokens);
  }
};

TEST_F(Fp8Kv, TakesAByteAValueAndOneMoreForEachVector) {
  const EngineInfo bf16 = load("tinyllama", {.dtype = "bf16"}).info();
  const EngineInfo fp8 = engine().info();
  EXPECT_EQ(bf16.kv_dtype, "bf16");
  EXPECT_EQ(fp8.kv_dtype, "fp8");
  EXPECT_EQ(bf16.kv_token_bytes, fp8.layers * 2 * fp8.kv_heads * fp8.head_dim * 2);
  EXPECT_EQ(fp8.kv_token_bytes, fp8.layers * 2 * fp8.kv_heads * (fp8.head_dim + 1));
  EXPECT_EQ(bf16.numerics_key.find("/kv_"), std::string::npos) << bf16.numerics_key;
  EXPECT_NE(fp8.numerics_key.find("/bf16/kv_fp8"), std::string::npos) << fp8.numerics_key;
  // It is told without weights, too.
  const Engine empty = load("tinyllama", {.kv_dtype = "fp8", .weights = false});
  EXPECT_EQ(empty.info().kv_dtype, "fp8");
  EXPECT_EQ(empty.info().kv_token_bytes, fp8.kv_token_bytes);
}

TEST_F(Fp8Kv, AutoIsTheTypeOfTheComputeType) {
  EXPECT_EQ(load("tinyllama", {.dtype = "f32"}).info().kv_dtype, "f32");
  EXPECT_EQ(load("llama_f16", {.dtype = "f16"}).info().kv_dtype, "f32");
  const EngineInfo rounded = load("tinyllama", {.dtype = "f32", .kv_dtype = "bf16"}).info();
  EXPECT_EQ(rounded.kv_dtype, "bf16");
  EXPECT_NE(rounded.numerics_key.find("/f32/kv_bf16"), std::string::npos) << rounded.numerics_key;
  const EngineInfo same = load("tinyllama", {.dtype = "bf16", .kv_dtype = "bf16"}).info();
  EXPECT_EQ(same.numerics_key.find("/kv_"), std::string::npos) << same.numerics_key;
}

TEST_F(Fp8Kv, IsRefusedWithABlockDrafterAndByOtherNames) {
  EngineOptions options{.kv_dtype = "fp8"};
  options.drafter = test::drafter_path("qwen3_full").string();
  EXPECT_ERROR(load("qwen3", options), "kv_dtype is fp8 and drafter ");
  EXPECT_ERROR(load("tinyllama", {.kv_dtype = "int8"}),
               "kv_dtype is \"int8\"; expected auto, bf16 or fp8");
}

TEST_F(Fp8Kv, ComesBackFromASnapshotToTheBit) {
  const Engine e = engine();
  Session session(e);
  std::vector<Branch> branches;
  branches.push_back(session.prefill(Random(5).tokens(37, 256)));
  branches.push_back(branches[0].at(20));  // ends inside a page
  session.decode(branches, greedy(7));
  const std::vector<std::byte> bytes = session.snapshot();
  const Engine other = engine();
  Restored restored = other.restore(bytes);
  EXPECT_TRUE(restored.kv_restored) << restored.note;
  for (std::size_t i = 0; i < branches.size(); ++i) {
    EXPECT_EQ(restored.branches[i].tokens(), branches[i].tokens());
    EXPECT_TRUE(same_bits(bits_of(restored.branches[i]), bits_of(branches[i])));
  }
  EXPECT_EQ(restored.session.stats().tokens_regenerated, 0);
}

TEST_F(Fp8Kv, SnapshotsOfAnotherTypeComeBackAsTokensAndSayWhy) {
  const Engine fp8 = engine();
  const Engine bf16 = load("tinyllama", {.dtype = "bf16"});
  for (const auto& [from, to] : {std::pair{&fp8, &bf16}, {&bf16, &fp8}}) {
    Session session(*from);
    Branch branch = session.prefill(Random(6).tokens(50, 256));
    Restored restored = to->restore(session.snapshot());
    EXPECT_FALSE(restored.kv_restored);
    EXPECT_NE(restored.note.find("the numerics key is " + to->info().numerics_key),
              std::string::npos)
        << restored.note;
    const Engine alone = load(
        "tinyllama", {.dtype = "bf16", .kv_dtype = to->info().kv_dtype, .prefix_index = false});
    EXPECT_TRUE(same_bits(bits_of(restored.branches[0]), test::replay(alone, branch.tokens())));
  }
}

TEST_F(Fp8Kv, IsTheSameAfterEviction) {
  const Engine e = engine({.kv_tokens = 128, .prefix_index = false});
  Session session(e);
  Branch first = session.prefill(Random(1).tokens(90, 256));
  Branch second = session.prefill(Random(2).tokens(100, 256));  // the two do not fit together
  EXPECT_GT(session.stats().evictions, 0);
  EXPECT_TRUE(same_bits(bits_of(first), replayed(first.tokens())));
  EXPECT_TRUE(same_bits(bits_of(second), replayed(second.tokens())));
}

TEST_F(Fp8Kv, SpeculationChangesNoToken) {
  const Engine e =
      engine({.draft_model = test::model_path("tinyllama").string(), .draft_kv_tokens = 4096});
  Session session(e);
  const Tokens half = Random(3).tokens(20, 256);
  Branch root = session.prefill(test::joined(half, half));
  std::vector<std::vector<Token>> drawn;
  for (const Speculate speculate : {Speculate::kOff, Speculate::kSuffix, Speculate::kDraftModel}) {
    DecodeParams params = greedy(24);
    params.speculate = speculate;
    params.slack = std::numeric_limits<double>::infinity();
    Branch branch = root.at(root.length());
    drawn.push_back(session.decode(branch, params).ids);
    EXPECT_TRUE(same_bits(bits_of(branch), replayed(branch.tokens())));
  }
  EXPECT_EQ(drawn[1], drawn[0]);
  EXPECT_EQ(drawn[2], drawn[0]);
  EXPECT_GT(session.stats().tokens_accepted, 0);
}

}  // namespace
}  // namespace dendrite
