// Configs of mixtures of experts, how their tensors may lie in files, and what is refused.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "../io/test_files.h"
#include "backend/forwarding_backend.h"
#include "io/model_folder.h"
#include "model/config_reader.h"
#include "model/loader.h"
#include "model/stored.h"
#include "model/weights.h"
#include "support/golden_data.h"
#include "support/safetensors_writer.h"

namespace dendrite {
namespace {

using Json = nlohmann::json;

DecoderConfig parse(const Json& config) {
  return parse_config(config.dump(), std::nullopt, "folder");
}

/// Qwen3-30B-A3B.
Json qwen3_moe(const Json& changes = Json::object()) {
  Json config = {{"model_type", "qwen3_moe"},
                 {"architectures", {"Qwen3MoeForCausalLM"}},
                 {"hidden_size", 2048},
                 {"intermediate_size", 6144},
                 {"num_hidden_layers", 48},
                 {"num_attention_heads", 32},
                 {"num_key_value_heads", 4},
                 {"head_dim", 128},
                 {"vocab_size", 151936},
                 {"num_experts", 128},
                 {"num_experts_per_tok", 8},
                 {"moe_intermediate_size", 768},
                 {"norm_topk_prob", true},
                 {"decoder_sparse_step", 1},
                 {"mlp_only_layers", Json::array()},
                 {"max_window_layers", 48},
                 {"use_sliding_window", false},
                 {"sliding_window", nullptr},
                 {"rope_theta", 1e6}};
  config.update(changes);
  return config;
}

testing::AssertionResult refuses(const Json& changes, const std::string& part) {
  return test::throws([&] { parse(qwen3_moe(changes)); }, part);
}

TEST(ExpertsConfig, OfQwen3IsReadInEitherSpelling) {
  Json other = qwen3_moe({{"num_local_experts", 128}});
  other.erase("num_experts");
  for (const Json& config : {qwen3_moe(), other}) {
    const DecoderConfig c = parse(config);
    ASSERT_TRUE(c.experts);
    EXPECT_EQ(c.experts->routing.experts, 128);
    EXPECT_EQ(c.experts->routing.chosen, 8);
    EXPECT_TRUE(c.experts->routing.normalised);
    EXPECT_EQ(c.experts->routing.shared, SharedExpert::kNone);
    EXPECT_EQ(c.experts->ffn_dim, 768);
    EXPECT_EQ(c.mixed_layers(), 48);
    EXPECT_EQ(c.ffn_dim, 768);
    EXPECT_EQ(c.widest_ffn(), 768);
    EXPECT_TRUE(c.qk_norm);
    EXPECT_EQ(c.windows, std::vector<std::int64_t>(48, 0));
  }
}

TEST(ExpertsConfig, MissingKeysMeanWhatTransformersTakesThemToMean) {
  const DecoderConfig qwen3 = parse({{"model_type", "qwen3_moe"}});
  EXPECT_EQ(qwen3.dim, 2048);
  EXPECT_EQ(qwen3.layers, 24);
  EXPECT_EQ(qwen3.kv_heads, 4);
  EXPECT_EQ(qwen3.head_dim, 64);
  EXPECT_EQ(qwen3.experts->routing.experts, 128);
  EXPECT_FALSE(qwen3.experts->routing.normalised);
  const DecoderConfig mixtral = parse({{"model_type", "mixtral"}});
  EXPECT_EQ(mixtral.experts->routing.experts, 8);
  EXPECT_EQ(mixtral.experts->routing.chosen, 2);
  EXPECT_TRUE(mixtral.experts->routing.normalised);
  EXPECT_EQ(mixtral.experts->ffn_dim, 14336);
  EXPECT_EQ(mixtral.norm_eps, 1e-5F);
  EXPECT_EQ(mixtral.rope.theta, 1e6);
  EXPECT_EQ(mixtral.windows.front(), 0);
  const DecoderConfig next = parse({{"model_type", "qwen3_next"}});
  EXPECT_EQ(next.layers, 48);
  EXPECT_EQ(next.experts->routing.experts, 512);
  EXPECT_EQ(next.experts->routing.chosen, 10);
  EXPECT_TRUE(next.experts->routing.normalised);
  EXPECT_TRUE(next.delta_net_by_key_head);
  const DecoderConfig hybrid = parse({{"model_type", "qwen3_5_moe_text"}});
  EXPECT_EQ(hybrid.dim, 2048);
  EXPECT_EQ(hybrid.layers, 40);
  EXPECT_EQ(hybrid.heads, 16);
  EXPECT_EQ(hybrid.kv_heads, 2);
  EXPECT_EQ(hybrid.recurrent_layers(), 30);
  EXPECT_EQ(hybrid.experts->routing.experts, 256);
  EXPECT_EQ(hybrid.experts->routing.chosen, 8);
  EXPECT_TRUE(hybrid.experts->routing.normalised);
  EXPECT_EQ(hybrid.experts->routing.shared, SharedExpert::kGated);
  EXPECT_EQ(hybrid.experts->shared_ffn_dim, 512);
}

TEST(ExpertsConfig, LayersAreMixturesAsTheFileSays) {
  const auto mixed = [](const Json& changes) {
    Json all = {{"num_hidden_layers", 5}};
    all.update(changes);
    return parse(qwen3_moe(all)).mixed;
  };
  using Layers = std::vector<bool>;
  EXPECT_EQ(mixed({{"decoder_sparse_step", 2}}), (Layers{false, true, false, true, false}));
  EXPECT_EQ(mixed({{"mlp_only_layers", {0, 3}}}), (Layers{false, true, true, false, true}));
  const DecoderConfig some = parse(qwen3_moe({{"decoder_sparse_step", 2}}));
  EXPECT_EQ(some.ffn_dim, 6144);
  EXPECT_EQ(some.widest_ffn(), 6144);
  const DecoderConfig none = parse(qwen3_moe({{"decoder_sparse_step", 100}}));
  EXPECT_FALSE(none.experts);
}

TEST(RefusedExpertsConfig, NamesTheKey) {
  EXPECT_TRUE(refuses({{"num_experts_per_tok", 129}}, "at most num_experts, 128"));
  EXPECT_TRUE(refuses({{"num_experts", 0}}, "\"num_experts\" is 0"));
  EXPECT_TRUE(refuses({{"moe_intermediate_size", 0}}, "\"moe_intermediate_size\" is 0"));
  EXPECT_TRUE(refuses({{"mlp_only_layers", {48}}}, "\"mlp_only_layers\""));
  EXPECT_TRUE(refuses({{"decoder_sparse_step", 0}}, "\"decoder_sparse_step\" is 0"));
  EXPECT_TRUE(refuses({{"norm_topk_prob", "yes"}}, "\"norm_topk_prob\""));
  EXPECT_TRUE(test::throws(
      [] {
        parse({{"model_type", "qwen3_5_moe"}, {"text_config", {{"model_type", "qwen3_5_text"}}}});
      },
      "\"text_config.model_type\" is \"qwen3_5_text\", expected \"qwen3_5_moe_text\""));
}

TEST(ExpertsLoader, TellsExpertsAndWhatATokenDoesNotMeet) {
  const test::TempFolder temp;
  temp.write("config.json", qwen3_moe().dump());
  const ModelFolder folder = ModelFolder::open(temp.path().string(), ModelFolder::Weights::kSkip);
  const ModelInfo info = make_loader(folder)->info();
  EXPECT_EQ(info.experts.layers, 48);
  EXPECT_EQ(info.experts.count, 128);
  EXPECT_EQ(info.experts.chosen, 8);
  // 30.5 G parameters, of which a token meets 3.3 G.
  EXPECT_EQ(info.experts.idle(info.sizes.dim), 48LL * 120 * 3 * 768 * 2048);
}

TEST(ExpertsLoader, HashesWhatResultsDependOn) {
  const auto hash = [](const Json& changes) {
    const test::TempFolder temp;
    temp.write("config.json", qwen3_moe(changes).dump());
    const ModelFolder folder = ModelFolder::open(temp.path().string(), ModelFolder::Weights::kSkip);
    return make_loader(folder)->info().config_hash;
  };
  const std::uint64_t plain = hash(Json::object());
  for (const Json& changes :
       {Json{{"num_experts_per_tok", 4}}, Json{{"norm_topk_prob", false}},
        Json{{"mlp_only_layers", {3}}}, Json{{"moe_intermediate_size", 512}}}) {
    EXPECT_NE(hash(changes), plain) << changes;
  }
  EXPECT_EQ(hash({{"router_aux_loss_coef", 0.1}}), plain);
}

/// A copy of a golden's folder whose tensors `change` may replace.
struct Copy {
  using Change =
      std::function<void(std::string& name, std::string& type, std::vector<std::int64_t>& shape,
                         std::vector<std::byte>& data)>;
  test::TempFolder temp;

  explicit Copy(const std::string& model, const Change& change) {
    const auto from = test::model_path(model);
    std::filesystem::copy_file(from / "config.json", temp.path() / "config.json");
    const ModelFolder files = ModelFolder::open(from.string());
    test::SafetensorsWriter writer;
    for (const std::string_view tensor : files.names()) {
      const TensorInfo& info = *files.find(tensor);
      std::string name(tensor);
      std::string type(info.stored_type);
      std::vector<std::int64_t> shape = info.shape;
      std::vector<std::byte> data(info.data, info.data + info.size_bytes);
      change(name, type, shape, data);
      writer.add(name, type, shape, data);
    }
    writer.write(temp.path() / "model.safetensors");
  }
  std::string error() const {
    const ModelFolder folder = ModelFolder::open(temp.path().string());
    try {
      make_loader(folder)->check(*make_cpu_backend(Numerics::kF32, 1));
    } catch (const Error& error) {
      return error.what();
    }
    return "";
  }
};

TEST(ExpertsLoader, NamesTensorsThatAreMissingOrOfAnotherShape) {
  const auto expect = [](const std::string& model, const std::string& name, std::int64_t rows,
                         const std::string& part) {
    const Copy copy(model, [&](std::string& tensor, std::string&, std::vector<std::int64_t>& shape,
                               std::vector<std::byte>& data) {
      if (!tensor.ends_with(name)) return;
      if (rows == 0) {
        tensor += ".gone";
        return;
      }
      const std::int64_t before = value_count(shape);
      shape[shape.size() - 2] += rows;
      data.resize(data.size() / static_cast<std::size_t>(before) *
                  static_cast<std::size_t>(value_count(shape)));
    });
    EXPECT_NE(copy.error().find(part), std::string::npos) << copy.error();
  };
  expect("qwen3_moe", "layers.2.mlp.experts.6.up_proj.weight", 0,
         "\"model.layers.2.mlp.experts.6.up_proj.weight\"");
  expect("qwen3_moe", "layers.2.mlp.gate.weight", 0, "\"model.layers.2.mlp.gate.weight\"");
  expect("qwen3_moe", "layers.1.mlp.up_proj.weight", 0, "\"model.layers.1.mlp.up_proj.weight\"");
  expect("mixtral", "layers.1.block_sparse_moe.experts.3.w2.weight", 0,
         "\"model.layers.1.block_sparse_moe.experts.3.w2.weight\"");
  expect("qwen3_moe_fused", "layers.1.mlp.experts.gate_up_proj", 1,
         "\"model.layers.1.mlp.experts.gate_up_proj\" has shape [5, 49, 32], expected [5, 48, 32]");
  expect("qwen3_moe_fused", "layers.3.mlp.experts.down_proj", 0,
         "\"model.layers.3.mlp.experts.down_proj\"");
  expect("qwen3_5_moe", "layers.0.mlp.shared_expert_gate.weight", 1,
         "\"model.language_model.layers.0.mlp.shared_expert_gate.weight\" has shape [2, 32]");
  const std::string experts = "model.layers.0.mlp.experts.";
  for (const char* what : {"gate_up_proj_scales", "down_proj_bias"}) {
    expect("gpt_oss_mxfp4", experts + what, 0, "\"" + experts + what + "\"");
  }
  expect("gpt_oss_mxfp4", experts + "down_proj_blocks", 0, "\"" + experts + "down_proj\"");
  expect("gpt_oss", "layers.1.mlp.router.bias", 0, "\"model.layers.1.mlp.router.bias\"");
  expect("glm4_moe", "layers.1.mlp.gate.e_score_correction_bias", 0, "e_score_correction_bias\"");
  expect("deepseek_v3", "layers.0.self_attn.kv_b_proj.weight", 1,
         "\"model.layers.0.self_attn.kv_b_proj.weight\" has shape [65, 16], expected [64, 16]");
}

TEST(ExpertsLoader, TakesScalesBesideAllExpertsOfOneTensorForNothing) {
  const Copy copy("qwen3_moe_fused", [](std::string& name, std::string& type,
                                        std::vector<std::int64_t>&, std::vector<std::byte>& data) {
    if (!name.ends_with("layers.1.mlp.experts.gate_up_proj")) return;
    type = "F8_E4M3";
    data.resize(data.size() / 2);
  });
  EXPECT_NE(copy.error().find("experts.gate_up_proj"), std::string::npos) << copy.error();
}

TEST(ExpertsLoader, CountsATensorOfAllExpertsOnce) {
  for (const char* model : {"qwen3_moe", "qwen3_moe_fused", "mixtral", "gpt_oss", "deepseek_v2"}) {
    const ModelFolder folder = ModelFolder::open(test::model_path(model).string());
    std::int64_t parameters = 0;
    std::int64_t bytes = 0;
    for (const StoredWeights& weights : stored_weights_of(folder)) {
      parameters += weights.parameters;
      bytes += weights.bytes;
    }
    EXPECT_EQ(parameters, test::golden_json(model)["parameters"]) << model;
    EXPECT_EQ(bytes, folder.total_bytes()) << model;
  }
}

/// Keys that are values, too, and a norm before two parts.
TEST(Loader, CountsATensorThatHasTwoPlacesOnce) {
  const auto device = make_cpu_backend(Numerics::kF32, 1);
  for (const char* name : {"gemma4_unified_text", "granitemoehybrid_moe", "gpt_oss", "mistral4"}) {
    const ModelFolder folder = ModelFolder::open(test::model_path(name).string());
    EXPECT_EQ(make_loader(folder)->load(*device, {})->parameters(),
              test::golden_json(name)["parameters"])
        << name;
  }
}

/// Notes what matrices are packed from.
class Noting final : public ForwardingBackend {
 public:
  std::map<std::string, std::string> formats;

  explicit Noting(const Numerics& numerics) : ForwardingBackend(make_cpu_backend(numerics, 1)) {}
  std::unique_ptr<Weight> pack(std::span<const StoredMatrix> parts) override {
    note(parts);
    return ForwardingBackend::pack(parts);
  }
  std::unique_ptr<Weight> pack_expert(std::span<const StoredMatrix> parts) override {
    note(parts);
    return ForwardingBackend::pack_expert(parts);
  }

 private:
  void note(std::span<const StoredMatrix> parts) {
    for (const StoredMatrix& part : parts) formats[std::string(part.name)] = part.format->name();
  }
};

TEST(ExpertsLoader, RoundsExpertsButNeverTheRouter) {
  Numerics numerics = Numerics::kBF16;
  numerics.rounding = WeightRounding::kInt8;
  const auto formats_of = [&](const char* model) {
    const ModelFolder folder = ModelFolder::open(test::model_path(model).string());
    Noting device(numerics);
    make_loader(folder)->load(device, {});
    return device.formats;
  };
  auto each = formats_of("qwen3_moe");
  EXPECT_EQ(each.at("model.layers.0.mlp.gate.weight"), "bf16");
  EXPECT_NE(each.at("model.layers.0.mlp.experts.3.up_proj.weight"), "bf16");
  auto fused = formats_of("qwen3_5_moe");
  EXPECT_EQ(fused.at("model.language_model.layers.0.mlp.gate.weight"), "bf16");
  EXPECT_EQ(fused.at("model.language_model.layers.0.mlp.shared_expert_gate.weight"), "bf16");
  EXPECT_NE(fused.at("model.language_model.layers.0.mlp.experts.gate_up_proj"), "bf16");
  auto mixtral = formats_of("mixtral");
  EXPECT_EQ(mixtral.at("model.layers.0.block_sparse_moe.gate.weight"), "bf16");
  EXPECT_NE(mixtral.at("model.layers.0.block_sparse_moe.experts.0.w1.weight"), "bf16");
  for (const char* const router : {"router.weight", "router.gate.weight"}) {
    auto other = formats_of(router == std::string("router.weight") ? "gpt_oss" : "hy_v3");
    EXPECT_EQ(other.at("model.layers.1.mlp." + std::string(router)), "bf16");
  }
}

TEST(ExpertsLoader, MakesUpExpertsInMxfp4WhereTheConfigSaysSo) {
  Json json = {{"model_type", "gpt_oss"},
               {"hidden_size", 64},
               {"intermediate_size", 96},
               {"num_hidden_layers", 1},
               {"num_attention_heads", 2},
               {"num_key_value_heads", 1},
               {"head_dim", 32},
               {"vocab_size", 40},
               {"num_local_experts", 4},
               {"num_experts_per_tok", 2},
               {"rope_theta", 1e4},
               {"rms_norm_eps", 1e-5},
               {"max_position_embeddings", 64}};
  const auto bytes_of = [&] {
    Noting device(Numerics::kBF16);
    const DecoderWeights weights = dummy_weights(parse(json), device);
    EXPECT_EQ(device.formats.contains("random"), json.contains("quantization_config"));
    return weights.size_bytes;
  };
  const std::int64_t plain = bytes_of();
  json["quantization_config"] = {{"quant_method", "mxfp4"}};
  EXPECT_LT(bytes_of(), plain - 4 * 3 * 64 * 96 * 3 / 4);
}

/// A device that computes all but mixtures.
class WithoutExperts final : public ForwardingBackend {
 public:
  WithoutExperts() : ForwardingBackend(make_cpu_backend(Numerics::kF32, 1)) {}
  bool has_experts() const override { return false; }
};

TEST(ExpertsLoader, RefusesDevicesThatComputeNoMixtures) {
  const ModelFolder folder = ModelFolder::open(test::model_path("mixtral").string());
  WithoutExperts device;
  EXPECT_TRUE(test::throws([&] { make_loader(folder)->load(device, {}); },
                           "is of type mixtral, a mixture of 4 experts, which device cpu"));
}

}  // namespace
}  // namespace dendrite
