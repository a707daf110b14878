// Models whose norms do not bear that products round their inputs (docs/decisions/0047).
#include <gtest/gtest.h>

#include <cmath>

#include "support/engine_support.h"
#include "support/tiny_model.h"

namespace dendrite::test {
namespace {

using Verdict = Compatibility::Verdict;

constexpr TinyAttention kEven{.model_type = "qwen3", .head_dim = 64, .heads = 2, .kv_heads = 1};

TinyAttention with_large_keys() {
  TinyAttention attention = kEven;
  attention.large_k_norm = 96.5F;
  return attention;
}

TinyAttention with_large_norms() {
  TinyAttention attention = kEven;
  attention.large_norm = 96.0F;
  return attention;
}

Engine load_tiny(const TinyModel& model, const char* dtype, const char* quantization = "int8") {
  return Engine::load(model.path(), {.device = on_cuda() ? "cuda" : "cpu",
                                     .dtype = dtype,
                                     .quantization = quantization,
                                     .threads = 1,
                                     .kv_tokens = 4096,
                                     .prefix_index = false});
}

/// Of the logits behind some prompts, against those of f32 with the same rounded weights.
double error_of(const TinyModel& model) {
  const Engine exact = load_tiny(model, "f32");
  const Engine engine = load_tiny(model, "bf16");
  double squares = 0;
  double error = 0;
  for (const std::int64_t length : {9, 20, 31, 50, 64, 90}) {
    const Tokens tokens = Random(5).tokens(length, 256);
    const std::vector<float> expected = replay(exact, tokens).logits;
    const std::vector<float> got = replay(engine, tokens).logits;
    for (std::size_t i = 0; i < expected.size(); ++i) {
      squares += static_cast<double>(expected[i]) * expected[i];
      error += std::pow(static_cast<double>(got[i]) - expected[i], 2);
    }
  }
  return std::sqrt(error / squares);  // NaN: something was not finite
}

TEST(Compatibility, OfEvenNormsChangesNothing) {
  const TinyModel model(kEven);
  for (const char* quantization : {"", "int8", "int4"}) {
    const Engine engine = load_tiny(model, "bf16", quantization);
    EXPECT_TRUE(engine.info().warnings.empty()) << engine.info().warnings.front();
    const Compatibility all = engine.compatibility();
    EXPECT_EQ(all.verdict, Verdict::kCompatible) << all.score;
    EXPECT_EQ(all.products, 5);  // two layers' two, and the output matrix
    EXPECT_EQ(all.unrounded, 0);
  }
  EXPECT_LT(error_of(model), 0.05);
}

TEST(Compatibility, LargeNormsOfKeysAreWarnedOfOnceAndNotRounded) {
  const TinyModel model(with_large_keys());
  const Engine engine = load_tiny(model, "bf16");
  const Compatibility all = engine.compatibility();
  EXPECT_EQ(all.verdict, Verdict::kIncompatible);
  EXPECT_GT(all.largest, 90);
  EXPECT_EQ(all.incompatible, 2);
  EXPECT_EQ(all.product.find("model.layers."), 0U) << all.product;
  EXPECT_LT(error_of(model), 0.15);
  if (on_cuda()) return;  // rounds none
  EXPECT_EQ(all.unrounded, 2);
  ASSERT_EQ(engine.info().warnings.size(), 1U);
  EXPECT_NE(engine.info().warnings[0].find(" times the typical one, score "), std::string::npos);
  // Weights of q, k and v take 16 bits instead of 8.5.
  const std::int64_t rounded = load_tiny(TinyModel(kEven), "bf16").info().weight_bytes;
  EXPECT_EQ(engine.info().weight_bytes - rounded, 2 * (4 * 64 * 128) * 15 / 16);
}

TEST(Compatibility, LargeNormsInFrontAreNotRounded) {
  const TinyModel model(with_large_norms());
  const Engine engine = load_tiny(model, "bf16");
  EXPECT_EQ(engine.compatibility().incompatible, 4);  // the final norm is even
  EXPECT_LT(error_of(model), 0.05);                   // 0.35 where they are rounded
  EXPECT_EQ(engine.info().warnings.size(), on_cuda() ? 0U : 1U);
}

TEST(Compatibility, NothingFallsBackWhereNothingIsRounded) {
  const TinyModel model(with_large_norms());
  for (const auto& [dtype, quantization] : {std::pair("f32", "int8"), {"bf16", ""}, {"f16", ""}}) {
    const Engine engine = load_tiny(model, dtype, quantization);
    // (A GPU tells that passes in these types are slow.)
    const bool slow = on_cuda() && std::string(dtype) != "bf16";
    EXPECT_EQ(engine.info().warnings.size(), slow ? 1U : 0U);
    EXPECT_EQ(engine.compatibility().verdict, Verdict::kIncompatible);
    EXPECT_EQ(engine.compatibility().unrounded, 0);
  }
}

TEST(Compatibility, KeepsForksEqualToReplays) {
  const TinyModel model(with_large_keys());
  const Engine engine = load_tiny(model, "bf16");
  Session session(engine, {.seed = 4});
  Branch root = session.prefill(Random(5).tokens(30, 256));
  std::vector<Branch> branches = root.fork(3);
  session.decode(branches, {.max_tokens = 8, .temperature = 1.0, .ignore_eos = true});
  for (Branch& branch : branches) {
    EXPECT_TRUE(same_bits(bits_of(branch), replay(load_tiny(model, "bf16"), branch.tokens())));
  }
}

TEST(Compatibility, IsToldWithoutWeightsAndOfShippedModels) {
  for (const char* name :
       {"dendrite-24", "dendrite-tools", "dendrite-compose", "dendrite-echo", "dendrite-ledger"}) {
    EngineOptions options;
    options.quantization = "int4";
    options.weights = false;
    const Engine engine = Engine::load(std::string(DENDRITE_MODELS_DIR) + "/" + name, options);
    const Compatibility all = engine.compatibility();
    EXPECT_EQ(all.verdict, Verdict::kCompatible) << name << " " << all.score << " " << all.largest;
    EXPECT_GT(all.products, 4);
  }
  EngineOptions dummy;
  dummy.load_format = "dummy";
  dummy.kv_tokens = 4096;
  EXPECT_EQ(load("qwen3", dummy).compatibility().products, 0);
}

}  // namespace
}  // namespace dendrite::test
