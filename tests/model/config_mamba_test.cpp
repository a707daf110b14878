// Configs of models with Mamba-2, and what their loaders say and refuse.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "../io/test_files.h"
#include "backend/backend.h"
#include "io/json_file.h"
#include "io/model_folder.h"
#include "model/config_reader.h"
#include "model/loader.h"
#include "support/golden_data.h"

namespace dendrite {
namespace {

using Json = nlohmann::json;

DecoderConfig parse(const Json& config) {
  return parse_config(config.dump(), std::nullopt, "folder");
}

/// What of granite-4.0-h-tiny's decides something, as the hub has it.
Json granite(const Json& changes = Json::object()) {
  Json types(40, "mamba");
  for (const std::size_t i : {5U, 15U, 25U, 35U}) types[i] = "attention";
  Json config = {{"model_type", "granitemoehybrid"},
                 {"architectures", {"GraniteMoeHybridForCausalLM"}},
                 {"hidden_size", 1536},
                 {"intermediate_size", 512},
                 {"shared_intermediate_size", 1024},
                 {"num_hidden_layers", 40},
                 {"num_attention_heads", 12},
                 {"num_key_value_heads", 4},
                 {"num_local_experts", 64},
                 {"num_experts_per_tok", 6},
                 {"vocab_size", 100352},
                 {"mamba_n_heads", 48},
                 {"mamba_n_groups", 1},
                 {"mamba_d_head", 64},
                 {"mamba_d_state", 128},
                 {"mamba_d_conv", 4},
                 {"mamba_expand", 2},
                 {"mamba_conv_bias", true},
                 {"mamba_proj_bias", false},
                 {"embedding_multiplier", 12},
                 {"attention_multiplier", 0.0078125},
                 {"residual_multiplier", 0.22},
                 {"logits_scaling", 6},
                 {"position_embedding_type", "nope"},
                 {"layer_types", types},
                 {"tie_word_embeddings", true}};
  config.update(changes);
  return config;
}

/// The same of Nemotron-H-8B's, less layers.
Json nemotron(const Json& changes = Json::object()) {
  Json config = {{"model_type", "nemotron_h"},
                 {"architectures", {"NemotronHForCausalLM"}},
                 {"hybrid_override_pattern", "M-M-M*-M"},
                 {"hidden_size", 4096},
                 {"intermediate_size", 21504},
                 {"head_dim", 128},
                 {"num_attention_heads", 32},
                 {"num_key_value_heads", 8},
                 {"mamba_num_heads", 128},
                 {"mamba_head_dim", 64},
                 {"n_groups", 8},
                 {"ssm_state_size", 128},
                 {"conv_kernel", 4},
                 {"layer_norm_epsilon", 1e-5},
                 {"mlp_hidden_act", "relu2"},
                 {"vocab_size", 131072},
                 {"sliding_window", nullptr},
                 {"torch_dtype", "bfloat16"}};
  config.update(changes);
  return config;
}

testing::AssertionResult refuses(const Json& config, const std::string& part) {
  return test::throws([&] { parse(config); }, part);
}

TEST(MambaConfig, OfGraniteIsReadAsTheHubHasIt) {
  const DecoderConfig c = parse(granite());
  EXPECT_EQ(c.recurrent_layers(), 36);
  EXPECT_TRUE(c.is_recurrent(0) && !c.is_recurrent(5) && !c.is_rotated(5));
  ASSERT_TRUE(c.mamba);
  EXPECT_EQ(c.mamba->heads, 48);
  EXPECT_EQ(c.mamba->head_dim, 64);
  EXPECT_EQ(c.mamba->groups, 1);
  EXPECT_EQ(c.mamba->state_dim, 128);
  EXPECT_EQ(c.mamba->taps, 4);
  EXPECT_EQ(c.mamba->least_dt, 0);
  EXPECT_TRUE(std::isinf(c.mamba->most_dt));
  EXPECT_TRUE(c.mamba->conv_bias && !c.mamba->bias);
  EXPECT_EQ(c.ffn_dim, 1024);
  ASSERT_TRUE(c.experts);
  EXPECT_EQ(c.experts->ffn_dim, 512);
  EXPECT_EQ(c.experts->routing.experts, 64);
  EXPECT_EQ(c.experts->routing.chosen, 6);
  EXPECT_EQ(c.experts->routing.scale, 1);
  EXPECT_TRUE(c.experts_beside && c.tie_embeddings);
  EXPECT_EQ(c.residual_scale, 0.22F);
  EXPECT_EQ(c.attention_scale, 0.0078125F);
  EXPECT_EQ(c.mlp_names.block, "shared_mlp.");

  const DecoderConfig dense = parse(granite({{"num_local_experts", 0},
                                             {"position_embedding_type", "rope"},
                                             {"layer_types", Json(40, "attention")}}));
  EXPECT_FALSE(dense.experts || dense.experts_beside || dense.mamba);
  EXPECT_TRUE(dense.recurrent.empty() && dense.is_rotated(0));
  EXPECT_EQ(dense.ffn_dim, 1024);
}

TEST(MambaConfig, LimitsOfDtMayBeInfinityInEitherSpelling) {
  const auto limits = [](const std::string& text) {
    std::string config = granite({{"time_step_limit", "HERE"}}).dump();
    config.replace(config.find("\"HERE\""), 6, text);
    return *parse_config(config, std::nullopt, "folder").mamba;
  };
  EXPECT_EQ(limits("[0.25, Infinity]").least_dt, 0.25F);
  EXPECT_TRUE(std::isinf(limits("[0.25, Infinity]").most_dt));
  EXPECT_TRUE(std::isinf(limits("[0.0, {\"__float__\": \"Infinity\"}]").most_dt));
  EXPECT_EQ(limits("[0.0, 2.5]").most_dt, 2.5F);
  EXPECT_TRUE(std::isinf(limits("null").most_dt));
  for (const char* wrong : {"[0.5]", "[0.5, 0.25]", "[-1.0, 2.0]", "[NaN, 2.0]", "[0.0, -Infinity]",
                            "[Infinity, Infinity]", "3"}) {
    EXPECT_TRUE(test::throws([&] { limits(wrong); }, "\"time_step_limit\" is ")) << wrong;
  }
}

TEST(MambaConfig, OfNemotronHIsReadAsTheHubHasIt) {
  const DecoderConfig c = parse(nemotron());
  EXPECT_EQ(c.layers, 8);
  EXPECT_EQ(c.windows.size(), 8U);
  EXPECT_EQ(c.recurrent_layers(), 4);
  EXPECT_TRUE(c.has_mixer(0) && !c.has_attention(0) && !c.has_mixer(1) && c.has_attention(5));
  EXPECT_EQ(c.parts_of(1), LayerParts::kFeedForward);
  EXPECT_EQ(c.parts_of(5), LayerParts::kMixer);
  EXPECT_FALSE(c.is_rotated(5));
  EXPECT_EQ(c.mamba->heads, 128);
  EXPECT_EQ(c.mamba->groups, 8);
  EXPECT_EQ(c.mamba->least_dt, 0.001F);
  EXPECT_TRUE(std::isinf(c.mamba->most_dt));
  EXPECT_EQ(c.mamba->block, "mixer.");
  EXPECT_EQ(c.norm_eps, 1e-5F);
  EXPECT_TRUE(c.squared_relu && c.mamba->conv_bias);
  EXPECT_FALSE(c.mamba->bias || c.mlp_bias || c.attention_bias);
  // As transformers 5 saves it, and as older files call some.
  const DecoderConfig other = parse({{"model_type", "nemotron_h"},
                                     {"layers_block_type", {"mamba", "attention", "mlp"}},
                                     {"mamba_d_conv", 3},
                                     {"mamba_n_groups", 4},
                                     {"mamba_dt_min", 0.5},
                                     {"mamba_conv_bias", false},
                                     {"use_bias", true}});
  EXPECT_EQ(other.layers, 3);
  EXPECT_TRUE(other.is_recurrent(0) && other.has_attention(1) && !other.has_mixer(2));
  EXPECT_EQ(other.mamba->taps, 3);
  EXPECT_EQ(other.mamba->groups, 4);
  EXPECT_EQ(other.mamba->least_dt, 0.5F);
  EXPECT_TRUE(other.mamba->bias && !other.mamba->conv_bias);
}

TEST(MambaConfig, OfNemotron3HasMixturesWithoutGates) {
  const DecoderConfig c = parse(nemotron({{"hybrid_override_pattern", "MEM*-E"},
                                          {"n_routed_experts", 128},
                                          {"num_experts_per_tok", 6},
                                          {"moe_intermediate_size", 1856},
                                          {"moe_shared_expert_intermediate_size", 3712},
                                          {"moe_latent_size", nullptr},
                                          {"routed_scaling_factor", 2.5}}));
  ASSERT_TRUE(c.experts);
  EXPECT_EQ(c.mixed_layers(), 2);
  EXPECT_TRUE(c.is_mixed(1) && !c.is_mixed(4) && !c.has_mixer(1) && c.squared_relu);
  const Routing& routing = c.experts->routing;
  EXPECT_EQ(routing.experts, 128);
  EXPECT_EQ(routing.chosen, 6);
  EXPECT_EQ(routing.score, RouterScore::kSigmoid);
  EXPECT_EQ(routing.shared, SharedExpert::kPlain);
  EXPECT_EQ(routing.scale, 2.5F);
  EXPECT_TRUE(routing.normalised);
  EXPECT_EQ(c.experts->ffn_dim, 1856);
  EXPECT_EQ(c.experts->shared_ffn_dim, 3712);
  EXPECT_EQ(c.ffn_dim, 21504);
}

TEST(MambaConfig, RefusesWhatItDoesNotCompute) {
  EXPECT_TRUE(refuses(granite({{"mamba_d_conv", 17}}), "\"mamba_d_conv\" is 17, expected"));
  EXPECT_TRUE(refuses(granite({{"mamba_d_head", 32}}), "mamba_expand times hidden_size, 3072"));
  EXPECT_TRUE(refuses(granite({{"mamba_d_head", "auto"}, {"mamba_n_heads", 47}}),
                      "\"mamba_n_heads\" is 47"));
  EXPECT_TRUE(refuses(granite({{"mamba_n_groups", 5}}), "a multiple of the number of groups, 5"));
  EXPECT_TRUE(refuses(granite({{"layer_types", Json(3, "mamba")}}),
                      "expected one for each of num_hidden_layers, 40"));
  EXPECT_TRUE(refuses(granite({{"layer_types", Json(40, "mamba")}}), "a layer of attention"));
  EXPECT_TRUE(refuses(granite({{"layer_types", Json(40, "conv")}}), "\"conv\" is not supported"));
  EXPECT_TRUE(refuses(granite({{"position_embedding_type", "alibi"}}), "position_embedding_type"));
  EXPECT_TRUE(refuses(nemotron({{"hybrid_override_pattern", "MX*"}}),
                      "\"hybrid_override_pattern\" is \"MX*\", expected layers of Mamba-2 (M), "
                      "attention (*), MLPs (-) and mixtures (E) alone (\"X\" is not supported)"));
  EXPECT_TRUE(refuses(nemotron({{"layers_block_type", {"mamba", "conv"}}}), "layers_block_type"));
  const Json mixed = {{"hybrid_override_pattern", "ME*"}};
  const auto of_mixed = [&](Json changes) {
    changes.update(mixed);
    return nemotron(changes);
  };
  EXPECT_TRUE(refuses(of_mixed({{"moe_latent_size", 1024}}), "moe_latent_size"));
  EXPECT_TRUE(refuses(of_mixed({{"mlp_bias", true}}), "mlp_bias"));
  EXPECT_TRUE(refuses(of_mixed({{"n_group", 3}}), "n_group"));
  EXPECT_TRUE(refuses(of_mixed({{"num_experts_per_tok", 9}}), "num_experts_per_tok"));
  EXPECT_TRUE(refuses(nemotron({{"hybrid_override_pattern", "M-M"}}), "a layer of attention"));
  EXPECT_TRUE(refuses(nemotron({{"hybrid_override_pattern", nullptr}}), "hybrid_override_pattern"));
  EXPECT_TRUE(refuses(nemotron({{"mlp_hidden_act", "relu"}}), "\"relu2\""));
  EXPECT_TRUE(refuses(nemotron({{"attention_bias", true}}), "attention_bias"));
  EXPECT_TRUE(refuses(nemotron({{"sliding_window", 128}}), "sliding_window"));
  EXPECT_TRUE(refuses(nemotron({{"mamba_num_heads", 129}}), "mamba_num_heads"));
  EXPECT_TRUE(refuses(nemotron({{"mamba_hidden_act", "gelu"}}), "mamba_hidden_act"));
}

/// A loader of a golden's folder whose config says something else, and what `fn` makes of it.
template <class Fn>
auto with_config(const std::string& model, const Json& changes, const Fn& fn) {
  const test::TempFolder temp;
  std::filesystem::copy(
      test::model_path(model), temp.path(),
      std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
  std::ifstream file(test::model_path(model) / "config.json");
  Json config =
      Json::parse(with_named_floats(std::string(std::istreambuf_iterator<char>(file), {})));
  config.update(changes);
  temp.write("config.json", config.dump());
  const ModelFolder folder = ModelFolder::open(temp.path().string());
  return fn(*make_loader(folder));
}

std::string error_with(const std::string& model, const Json& changes) {
  return with_config(model, changes, [](const ModelLoader& loader) -> std::string {
    try {
      loader.check(*make_cpu_backend(Numerics::kF32, 1));
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  });
}

TEST(MambaLoader, TellsWhatPathsKeep) {
  const ModelInfo info = with_config("nemotron_h", Json::object(),
                                     [](const ModelLoader& loader) { return loader.info(); });
  EXPECT_EQ(info.sizes.layers, 5);
  EXPECT_EQ(info.kv.layers, 1);
  ASSERT_TRUE(info.state);
  EXPECT_EQ(info.state->layers, 2);
  const std::int64_t channels = 48 + 2 * 32;
  EXPECT_EQ(info.state->anchor_values, 4 * 12 * 16 + 3 * channels);
  EXPECT_EQ(info.state->journal_values, 32 + 48 + 4 + channels);
}

TEST(MambaLoader, TellsWhatATokenDoesNotMeetOfExpertsWithoutGates) {
  const ModelInfo info = with_config("nemotron_h_moe", Json::object(),
                                     [](const ModelLoader& loader) { return loader.info(); });
  EXPECT_EQ(info.experts.layers, 2);
  EXPECT_EQ(info.experts.idle(info.sizes.dim), 2 * 4 * 2 * 12 * 32);
}

TEST(MambaLoader, HashesWhatResultsDependOn) {
  const auto hash = [](const std::string& model, const Json& changes) {
    return with_config(model, changes,
                       [](const ModelLoader& loader) { return loader.info().config_hash; });
  };
  const std::uint64_t plain = hash("nemotron_h", Json::object());
  for (const Json& changes :
       {Json{{"conv_kernel", 5}}, Json{{"use_bias", true}}, Json{{"use_conv_bias", false}},
        Json{{"time_step_min", 0.0}}, Json{{"n_groups", 1}}, Json{{"ssm_state_size", 8}},
        Json{{"hybrid_override_pattern", "M*-M-"}}, Json{{"layer_norm_epsilon", 1e-5}}}) {
    EXPECT_NE(hash("nemotron_h", changes), plain) << changes;
  }
  EXPECT_EQ(hash("nemotron_h", {{"use_cache", false}}), plain);
  const std::uint64_t other = hash("granitemoehybrid", Json::object());
  for (const Json& changes :
       {Json{{"time_step_limit", {0.3, 1.0}}}, Json{{"position_embedding_type", "rope"}},
        Json{{"layer_types", {"attention", "mamba", "mamba"}}}}) {
    EXPECT_NE(hash("granitemoehybrid", changes), other) << changes;
  }
}

TEST(MambaLoader, NamesTensorsThatAreNotThere) {
  const auto expect = [](const std::string& error, const std::string& part) {
    EXPECT_NE(error.find(part), std::string::npos) << error;
  };
  for (const char* model :
       {"granitemoehybrid", "granitemoehybrid_moe", "nemotron_h", "nemotron_h_moe"}) {
    EXPECT_EQ(error_with(model, Json::object()), "");
  }
  expect(error_with("nemotron_h", {{"conv_kernel", 3}}),
         "\"backbone.layers.0.mixer.conv1d.weight\" has shape [112, 1, 4], expected [112, 1, 3]");
  expect(error_with("nemotron_h", {{"use_bias", true}}),
         "\"backbone.layers.0.mixer.in_proj.bias\"");
  expect(error_with("nemotron_h", {{"hybrid_override_pattern", "M--M*"}}),
         "\"backbone.layers.2.mixer.up_proj.weight\"");
  expect(error_with("granitemoehybrid", {{"mamba_n_groups", 1}}),
         "\"model.layers.0.mamba.in_proj.weight\"");
  expect(error_with("granitemoehybrid", {{"layer_types", {"attention", "mamba", "mamba"}}}),
         "\"model.layers.0.self_attn.q_proj.weight\"");
  expect(error_with("granitemoehybrid", {{"num_local_experts", 2}, {"num_experts_per_tok", 1}}),
         "\"model.layers.0.block_sparse_moe.router.layer.weight\"");
  expect(
      error_with("nemotron_h_moe", {{"layers_block_type", {"mamba", "mlp", "attention", "moe"}}}),
      "\"backbone.layers.1.mixer.up_proj.weight\"");
  expect(error_with("nemotron_h_moe", {{"n_routed_experts", 7}}), "mixer.gate.weight");
  expect(error_with("nemotron_h_moe", {{"moe_shared_expert_intermediate_size", 12}}),
         "\"backbone.layers.1.mixer.shared_experts.up_proj.weight\"");
}

}  // namespace
}  // namespace dendrite
