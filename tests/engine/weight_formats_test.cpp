// Whole models whose weights are stored in 8 and 4 bits.
#include <gtest/gtest.h>

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/engine_support.h"
#include "support/packed_matrix.h"
#include "support/safetensors_writer.h"
#include "support/temporary_folder.h"
#include "support/tiny_model.h"

namespace dendrite::test {
namespace {

constexpr std::int64_t kDim = 128;
constexpr std::int64_t kFfnDim = 192;
constexpr std::int64_t kVocab = 256;

/// The same model twice: its matrices in a format, and as the f32 that they mean.
class WeightFormats : public testing::TestWithParam<std::string> {
 protected:
  WeightFormats() {
    const nlohmann::json config = {
        {"model_type", "llama"},        {"hidden_size", kDim},
        {"intermediate_size", kFfnDim}, {"num_hidden_layers", 2},
        {"num_attention_heads", 2},     {"num_key_value_heads", 1},
        {"vocab_size", kVocab},         {"max_position_embeddings", 2048},
        {"tie_word_embeddings", true},  {"torch_dtype", "float32"}};
    const auto plain = [&](const std::string& name, const std::vector<std::int64_t>& shape) {
      std::vector<float> values(
          static_cast<std::size_t>(shape[0] * (shape.size() > 1 ? shape[1] : 1)));
      for (float& value : values) {
        value = shape.size() == 1 ? 1.0F : static_cast<float>(random_.in(-64, 64)) / 256;
      }
      const auto bytes = std::as_bytes(std::span(values));
      packed_.add(name, "F32", shape, bytes);
      meant_.add(name, "F32", shape, bytes);
    };
    const auto matrix = [&](const std::string& name, std::int64_t rows, std::int64_t cols) {
      const PackedMatrix one = packer_.pack(GetParam(), name, rows, cols);
      for (const PackedTensor& tensor : one.tensors) {
        packed_.add(tensor.name, tensor.type, tensor.shape, tensor.bytes);
      }
      meant_.add(name, "F32", {rows, cols}, std::as_bytes(std::span(one.meant)));
    };
    plain("model.embed_tokens.weight", {kVocab, kDim});
    plain("model.norm.weight", {kDim});
    for (int i = 0; i < 2; ++i) {
      const std::string layer = "model.layers." + std::to_string(i) + ".";
      plain(layer + "input_layernorm.weight", {kDim});
      plain(layer + "post_attention_layernorm.weight", {kDim});
      matrix(layer + "self_attn.q_proj.weight", kDim, kDim);
      matrix(layer + "self_attn.k_proj.weight", 64, kDim);
      matrix(layer + "self_attn.v_proj.weight", 64, kDim);
      matrix(layer + "self_attn.o_proj.weight", kDim, kDim);
      matrix(layer + "mlp.gate_proj.weight", kFfnDim, kDim);
      matrix(layer + "mlp.up_proj.weight", kFfnDim, kDim);
      matrix(layer + "mlp.down_proj.weight", kDim, kFfnDim);
    }
    for (const auto& [name, weights] : {std::pair("packed", &packed_), {"meant", &meant_}}) {
      std::filesystem::create_directory(folder_.path() / name);
      std::ofstream(folder_.path() / name / "config.json") << config;
      weights->write(folder_.path() / name / "model.safetensors");
    }
  }

  Engine load(const char* name, const char* dtype) const {
    return Engine::load((folder_.path() / name).string(), {.device = on_cuda() ? "cuda" : "cpu",
                                                           .dtype = dtype,
                                                           .threads = 1,
                                                           .kv_tokens = 4096,
                                                           .prefix_index = false});
  }

  Random random_{3};
  Packer packer_;
  SafetensorsWriter packed_, meant_;
  TemporaryFolder folder_;
};

INSTANTIATE_TEST_SUITE_P(Kinds, WeightFormats, testing::ValuesIn(packed_kinds()),
                         [](const auto& kind) { return kind.param; });

bool e4m3(const std::string& kind) {
  return kind.starts_with("fp8") || kind.starts_with("mxfp8");
}

/// Whether its products have not the bits of widened weights: a CPU rounds what most are multiplied
/// with to 8 bits, a GPU sums packed ones in an order of their own.
bool differs(const std::string& kind) {
  return on_cuda() || !e4m3(kind);
}

/// Bytes of 64 rows of codes of E4M3 on a CPU, with their tables and exponents.
std::int64_t panel_bytes(const std::string& kind, std::int64_t cols) {
  const std::int64_t beside = kind == "fp8_channel"       ? 64
                              : kind.starts_with("mxfp8") ? 1 + cols / 32
                                                          : (cols + 127) / 128;
  return 64 * (cols + beside);
}

TEST_P(WeightFormats, HaveTheBitsOfWhatTheyMean) {
  for (const char* dtype : {"f32", "bf16"}) {
    const bool same = dtype == std::string("f32") || !differs(GetParam());
    const Engine packed = load("packed", dtype);
    const Engine meant = load(same ? "meant" : "packed", dtype);  // else: those of a replay
    Session session(packed, {.seed = 4});
    Branch root = session.prefill(Random(5).tokens(30, kVocab));
    std::vector<Branch> branches = root.fork(3);
    session.decode(branches, {.max_tokens = 8, .temperature = 1.0, .ignore_eos = true});
    for (Branch& branch : branches) {
      EXPECT_TRUE(same_bits(bits_of(branch), replay(meant, branch.tokens()))) << dtype;
    }
  }
}

TEST_P(WeightFormats, GiveTheLogitsOfWhatTheyMean) {
  const std::vector<Token> tokens = Random(5).tokens(30, kVocab);
  const std::vector<float> exact = replay(load("meant", "f32"), tokens).logits;
  const std::vector<float> rounded = replay(load("packed", "bf16"), tokens).logits;
  double square = 0;
  double error = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    square += static_cast<double>(exact[i]) * exact[i];
    error += std::pow(static_cast<double>(rounded[i]) - exact[i], 2.0);
  }
  EXPECT_LT(std::sqrt(error / square), 0.12);
}

TEST_P(WeightFormats, TakeTheMemoryOfTheirBits) {
  if (on_cuda()) GTEST_SKIP() << "see packed_tiles_test.cpp";
  const std::int64_t plain = load("meant", "bf16").info().weight_bytes;
  const std::int64_t packed = load("packed", "bf16").info().weight_bytes;
  const std::string& kind = GetParam();
  const double bits = kind == "int8"                                ? 9
                      : kind.starts_with("mxfp4")                   ? 4.25
                      : kind.starts_with("nvfp4") || kind == "int4" ? 4.5
                                                                    : 4.75;
  const double matrices = 2 * (3 * kDim * kFfnDim + 3 * kDim * kDim);
  if (e4m3(kind)) {
    const std::int64_t panels = (2 * kDim + kDim + 2 * kFfnDim) / 64;
    EXPECT_EQ(static_cast<std::int64_t>(matrices) * 2 - (plain - packed),
              2 * (panels * panel_bytes(kind, kDim) + kDim / 64 * panel_bytes(kind, kFfnDim)));
    return;
  }
  // Weights have an order of columns each.
  const std::int64_t orders = kind == "gptq_order" ? 2 * 4 * (3 * kDim + kFfnDim) : 0;
  EXPECT_EQ(static_cast<double>(plain - packed + orders), matrices * (16 - bits) / 8);
}

TEST(WeightsOfGptOss, ExpertsTakeTheBitsOfTheirFile) {
  if (on_cuda()) GTEST_SKIP() << "a GPU widens rows that are no whole tiles";
  const std::string folder = std::string(DENDRITE_TEST_DATA) + "/models/gpt_oss_mxfp4";
  const auto weight_bytes = [&](const char* dtype) {
    return Engine::load(folder, {.dtype = dtype, .threads = 1, .kv_tokens = 256})
        .info()
        .weight_bytes;
  };
  // Two layers of four experts: gate and up are [128, 32], down is [32, 64]; rows are padded to 64.
  constexpr double kExperts = 2 * 4 * (128 * 32 + 64 * 64);
  // In f32 they are widened; what is bf16 in the file stays so in both.
  EXPECT_EQ(static_cast<double>(weight_bytes("f32") - weight_bytes("bf16")),
            kExperts * (32 - 4.25) / 8);
}

/// The shipped model, its matrices rounded when it is loaded: "int4", "int4+int8" with the matrix
/// that gives the logits, "+int8" this one alone.
class RoundedWeights : public testing::TestWithParam<std::string> {
 protected:
  static Engine load(const std::string& quantization, const char* dtype = "bf16") {
    const std::size_t plus = quantization.find('+');
    return Engine::load(
        std::string(DENDRITE_MODELS_DIR) + "/dendrite-24",
        {.device = on_cuda() ? "cuda" : "cpu",
         .dtype = dtype,
         .quantization = quantization.substr(0, plus),
         .output_quantization = plus == std::string::npos ? "" : quantization.substr(plus + 1),
         .threads = 1,
         .kv_tokens = 4096,
         .prefix_index = false});
  }
};

INSTANTIATE_TEST_SUITE_P(Kinds, RoundedWeights,
                         testing::Values("fp8", "int8", "int4", "+fp8", "+int8", "int4+int8"),
                         [](const auto& kind) {
                           std::string name = kind.param;
                           std::ranges::replace(name, '+', '_');
                           return name;
                         });

TEST_P(RoundedWeights, GiveNearlyTheLogitsTheyWouldGive) {
  const Engine whole = load("");
  const Engine rounded = load(GetParam());
  const std::string& told = rounded.info().output_quantization;
  EXPECT_EQ(rounded.info().quantization + (told.empty() ? "" : "+") + told, GetParam());
  EXPECT_NE(rounded.info().numerics_key, whole.info().numerics_key);
  const std::vector<Token> tokens = whole.encode("S 24: 2 5 8 10\n");
  const std::vector<float> exact = replay(whole, tokens).logits;
  const std::vector<float> got = replay(rounded, tokens).logits;
  double square = 0;
  double error = 0;
  for (std::size_t i = 0; i < exact.size(); ++i) {
    square += static_cast<double>(exact[i]) * exact[i];
    error += std::pow(static_cast<double>(got[i]) - exact[i], 2.0);
  }
  EXPECT_GT(error, 0);
  EXPECT_LT(std::sqrt(error / square), GetParam().starts_with("int4") ? 0.3 : 0.06);
}

TEST_P(RoundedWeights, AreForkedAndReplayedToTheBit) {
  for (const char* dtype : {"bf16", "f32"}) {
    const Engine engine = load(GetParam(), dtype);
    const Engine alone = load(GetParam(), dtype);
    Session session(engine, {.seed = 4});
    Branch root = session.prefill("S 24: 2 5 8 10\n");
    std::vector<Branch> branches = root.fork(3);
    session.decode(branches, {.max_tokens = 12, .temperature = 1.0, .ignore_eos = true});
    for (Branch& branch : branches) {
      EXPECT_TRUE(same_bits(bits_of(branch), replay(alone, branch.tokens()))) << dtype;
    }
  }
}

std::int64_t weight_bytes(const TinyModel& model, const char* output_quantization) {
  return Engine::load(model.path(), {.dtype = "bf16",
                                     .output_quantization = output_quantization,
                                     .threads = 1,
                                     .kv_tokens = 256})
      .info()
      .weight_bytes;
}

TEST(OutputMatrix, TakesTheMemoryOfItsBits) {
  for (const bool tied : {true, false}) {
    const TinyModel model({.tied = tied});
    const std::int64_t plain = weight_bytes(model, "");
    // Tables are half as large as rows that are so short.
    EXPECT_EQ(weight_bytes(model, "fp8"), plain - kVocab * kDim / 2) << tied;
    EXPECT_EQ(weight_bytes(model, "int8"), plain - kVocab * kDim * 15 / 16) << tied;
  }
}

TEST(RoundedWeightsOption, UnknownNamesAreRefused) {
  try {
    Engine::load(std::string(DENDRITE_MODELS_DIR) + "/dendrite-24", {.quantization = "int3"});
    FAIL() << "expected an Error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "quantization is \"int3\"; expected fp8, int8, int4 or nothing");
  }
  try {
    Engine::load(std::string(DENDRITE_MODELS_DIR) + "/dendrite-24",
                 {.output_quantization = "int4"});
    FAIL() << "expected an Error";
  } catch (const Error& error) {
    EXPECT_STREQ(error.what(), "output_quantization is \"int4\"; expected fp8, int8 or nothing");
  }
}

}  // namespace
}  // namespace dendrite::test
