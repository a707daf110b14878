// Mixtures, hybrids and text beside vision that are written with fewer bits, read back.
#include <gtest/gtest.h>

#include <cstring>

#include "dendrite/model_files.h"
#include "dendrite/quantize.h"
#include "support/quantized_model.h"

namespace dendrite::test {
namespace {

/// How a family's tensors of all experts of a layer hold them, and what each one's are called.
struct Fused {
  std::string gate_up = "experts.gate_up_proj";
  std::string down = "experts.down_proj";
  std::vector<std::string> names{"gate_proj", "up_proj", "down_proj"};
  bool transposed = false;
  bool in_turns = false;
};

Fused fused_of(std::string_view model) {
  if (model.starts_with("granite")) {
    return {.gate_up = "input_linear.weight",
            .down = "output_linear.weight",
            .names = {"w1", "w3", "w2"}};
  }
  return {.transposed = model.starts_with("llama4") || model == "gpt_oss",
          .in_turns = model == "gpt_oss"};
}

/// Of the matrices of one, each written by itself, the largest.
double error_of_experts(const ModelFolder& plain, const ModelFolder& packed, const Fused& fused,
                        const std::string& tensor) {
  const TensorInfo& info = *plain.find(tensor);
  const bool down = tensor.ends_with(fused.down);
  const std::string before =
      tensor.substr(0, tensor.size() - (down ? fused.down : fused.gate_up).size());
  const std::size_t kinds = down ? 1 : 2;
  const auto rows = static_cast<std::size_t>(info.shape[fused.transposed ? 2 : 1]) / kinds;
  const auto cols = static_cast<std::size_t>(info.shape[fused.transposed ? 1 : 2]);
  const std::vector<float> all = numbers_of(info);
  double worst = 0;
  for (std::size_t expert = 0; expert < static_cast<std::size_t>(info.shape[0]); ++expert) {
    for (std::size_t kind = 0; kind < kinds; ++kind) {
      std::vector<float> values;
      for (std::size_t r = 0; r < rows; ++r) {
        const std::size_t row = fused.in_turns ? r * kinds + kind : kind * rows + r;
        for (std::size_t k = 0; k < cols; ++k) {
          const std::size_t at = fused.transposed ? k * rows * kinds + row : row * cols + k;
          values.push_back(all[expert * kinds * rows * cols + at]);
        }
      }
      const StoredMatrix was{.format = &f32_format(),
                             .data = reinterpret_cast<const std::byte*>(values.data()),
                             .rows = static_cast<std::int64_t>(rows),
                             .cols = static_cast<std::int64_t>(cols),
                             .stride = static_cast<std::int64_t>(4 * cols)};
      const std::string& part = fused.names[down ? 2 : kind];
      const StoredMatrix is =
          packed.matrix(before + (before.ends_with("experts.") ? "" : "experts.") +
                            std::to_string(expert) + "." + part + ".weight",
                        was.rows, was.cols);
      worst = std::max(worst, error_of(was, is));
    }
  }
  return worst;
}

class QuantizeMixtures : public Quantize, public testing::WithParamInterface<QuantizeCase> {};

INSTANTIATE_TEST_SUITE_P(Formats, QuantizeMixtures, testing::ValuesIn(kQuantizeCases),
                         [](const auto& one) { return one.param.format; });

/// Experts by themselves and in one tensor of any layout, beside an MLP, behind a dense layer; text
/// and more; delta networks, short convolutions and Mamba-2.
TEST_P(QuantizeMixtures, HybridsAndTextBesideVisionAreReadBack) {
  const bool four = std::string_view(GetParam().format) == "int4";
  for (const char* name : {"mixtral",        "qwen3_moe",        "qwen3_moe_fused",
                           "glm4_moe",       "deepseek_v3",      "gemma4",
                           "gemma3",         "gemma4_text",      "qwen3_5",
                           "qwen3_5_moe",    "qwen3_next",       "lfm2",
                           "lfm2_moe",       "granitemoehybrid", "nemotron_h",
                           "nemotron_h_moe", "granitemoe",       "granitemoehybrid_moe",
                           "gpt_oss",        "gpt_oss_mxfp4",    "kimi_linear",
                           "llama4",         "llama4_text"}) {
    SCOPED_TRACE(name);
    const std::string_view model = name;
    if (four && (model == "kimi_linear" || model.starts_with("llama4"))) continue;  // short rows
    const fs::path to = folder_.path() / name;
    const Quantized done = quantize(test::model_path(name), to, {.format = GetParam().format});
    EXPECT_GT(done.matrices, 0);
    const ModelFolder plain = ModelFolder::open(test::model_path(name).string());
    const ModelFolder packed = ModelFolder::open(to.string());
    const Fused fused = fused_of(name);
    int compared = 0;
    for (const std::string_view tensor : plain.names()) {
      const auto& shape = plain.find(tensor)->shape;
      double error = 0;
      if (shape.size() == 3 && packed.find(tensor) == nullptr &&
          (tensor.ends_with(fused.gate_up) || tensor.ends_with(fused.down))) {
        error = error_of_experts(plain, packed, fused, std::string(tensor));
        EXPECT_GT(error, 0) << tensor;
      } else if (shape.size() == 2 && !tensor.ends_with("_bias")) {
        error = error_of(plain.matrix(tensor, shape[0], shape[1]),
                         packed.matrix(tensor, shape[0], shape[1]));
      }
      EXPECT_LE(error, 3 * GetParam().most) << tensor;
      compared += error > 0 ? 1 : 0;
    }
    EXPECT_GT(compared, 4);
    const std::vector<float> logits = logits_of(to);
    EXPECT_TRUE(std::ranges::all_of(logits, [](float one) { return std::isfinite(one); }));
  }
}

TEST_F(Quantize, ExpertsOfFp8AtLoadAreWhatAFileOfThemHolds) {
  for (const char* name : {"qwen3_moe_fused", "granitemoe", "granitemoehybrid_moe", "gpt_oss",
                           "gpt_oss_mxfp4", "llama4", "llama4_text"}) {
    SCOPED_TRACE(name);
    const fs::path to = folder_.path() / name;
    quantize(test::model_path(name), to, {.format = "fp8"});
    const std::vector<float> file = logits_of(to);
    EXPECT_EQ(logits_of(test::model_path(name), kPrompts, "fp8"), file);
    EXPECT_NE(logits_of(test::model_path(name)), file);
  }
}

TEST_F(Quantize, ExpertsOfGptOssHaveTheirBiasesBesideThem) {
  quantize(test::model_path("gpt_oss"), out(), {.format = "int8"});
  const ModelFolder plain = ModelFolder::open(test::model_path("gpt_oss").string());
  const ModelFolder packed = ModelFolder::open(out().string());
  const std::string layer = "model.layers.1.mlp.experts.";
  const TensorInfo& both = *plain.find(layer + "gate_up_proj_bias");
  const std::vector<float> all = numbers_of(both);
  for (std::int64_t expert = 0; expert < both.shape[0]; ++expert) {
    for (std::int64_t kind = 0; kind < 2; ++kind) {
      const std::vector<float> one =
          packed.vector(layer + std::to_string(expert) + (kind == 0 ? ".gate" : ".up") +
                            std::string("_proj.bias"),
                        both.shape[1] / 2);
      for (std::size_t i = 0; i < one.size(); ++i) {
        const auto at = static_cast<std::size_t>(expert * both.shape[1] + kind) + 2 * i;
        EXPECT_EQ(one[i], all[at]);
      }
    }
  }
  const std::vector<float> down = numbers_of(*plain.find(layer + "down_proj_bias"));
  const std::int64_t dim = plain.find(layer + "down_proj_bias")->shape[1];
  EXPECT_EQ(packed.vector(layer + "1.down_proj.bias", dim),
            std::vector<float>(down.begin() + dim, down.begin() + 2 * dim));
  EXPECT_EQ(packed.find(layer + "down_proj_bias"), nullptr);
}

/// Whose rows are no whole groups: matrices and biases stay in their tensors.
TEST_F(Quantize, ExpertsOfALayerStayTogether) {
  const Quantized done =
      quantize(test::model_path("gpt_oss"), out(), {.format = "int4", .group = 32});
  EXPECT_NE(std::ranges::find(done.left, "model.layers.0.mlp.experts.gate_up_proj"),
            done.left.end());
  const ModelFolder packed = ModelFolder::open(out().string());
  for (const char* name : {"gate_up_proj", "gate_up_proj_bias", "down_proj", "down_proj_bias"}) {
    EXPECT_NE(packed.find("model.layers.0.mlp.experts." + std::string(name)), nullptr) << name;
  }
  const Quantized granite =
      quantize(test::model_path("granitemoe"), folder_.path() / "two", {.format = "int4"});
  EXPECT_NE(std::ranges::find(granite.left, "model.layers.0.block_sparse_moe.output_linear"),
            granite.left.end());
}

TEST_F(Quantize, ExpertsInMxfp4StayByteForByte) {
  quantize(test::model_path("gpt_oss_mxfp4"), out(), {.format = "int8"});
  const ModelFolder was = ModelFolder::open(test::model_path("gpt_oss_mxfp4").string());
  const ModelFolder is = ModelFolder::open(out().string());
  int experts = 0;
  for (const std::string_view name : was.names()) {
    if (name.find(".experts.") == name.npos) continue;
    const TensorInfo& before = *was.find(name);
    const TensorInfo* const after = is.find(name);
    ASSERT_NE(after, nullptr) << name;
    EXPECT_EQ(after->stored_type, before.stored_type);
    ASSERT_EQ(after->shape, before.shape);
    EXPECT_EQ(std::memcmp(after->data, before.data, static_cast<std::size_t>(before.size_bytes)),
              0);
    ++experts;
  }
  EXPECT_EQ(experts, 12);  // blocks, scales and biases of two, in two layers
  const auto stored = stored_weights(out().string());
  for (const char* format : {"mxfp4", "int8"}) {
    EXPECT_NE(std::ranges::find(stored, format, &StoredWeights::format), stored.end()) << format;
  }
  const nlohmann::json said = config_of(out())["quantization_config"];
  EXPECT_EQ(said["quant_method"], "compressed-tensors");
  const nlohmann::json& ignored = said["ignore"];
  EXPECT_EQ(std::ranges::count(ignored, nlohmann::json("model.layers.1.mlp.experts")), 1);
}

}  // namespace
}  // namespace dendrite::test
