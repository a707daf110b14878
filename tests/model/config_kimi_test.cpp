// Configs of Kimi-Linear, and what its loader says and refuses.
#include <gtest/gtest.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "../io/test_files.h"
#include "backend/backend.h"
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

/// Kimi-Linear-48B-A3B's lists of layers.
Json lists(const Json& changes = Json::object()) {
  Json all = {
      {"full_attn_layers", {4, 8, 12, 16, 20, 24, 27}},
      {"kda_layers", {1, 2, 3, 5, 6, 7, 9, 10, 11, 13, 14, 15, 17, 18, 19, 21, 22, 23, 25, 26}},
      {"head_dim", 128},
      {"num_heads", 32},
      {"short_conv_kernel_size", 4}};
  all.update(changes);
  return all;
}

/// What of its config decides something, as the hub has it.
Json kimi(const Json& changes = Json::object()) {
  Json config = {{"model_type", "kimi_linear"},
                 {"architectures", {"KimiLinearForCausalLM"}},
                 {"hidden_size", 2304},
                 {"head_dim", 72},
                 {"intermediate_size", 9216},
                 {"num_hidden_layers", 27},
                 {"num_attention_heads", 32},
                 {"num_key_value_heads", 32},
                 {"model_max_length", 1048576},
                 {"linear_attn_config", lists()},
                 {"first_k_dense_replace", 1},
                 {"kv_lora_rank", 512},
                 {"q_lora_rank", nullptr},
                 {"qk_nope_head_dim", 128},
                 {"qk_rope_head_dim", 64},
                 {"v_head_dim", 128},
                 {"mla_use_nope", true},
                 {"moe_intermediate_size", 1024},
                 {"moe_layer_freq", 1},
                 {"moe_renormalize", true},
                 {"moe_router_activation_func", "sigmoid"},
                 {"num_expert_group", 1},
                 {"num_experts", 256},
                 {"num_experts_per_token", 8},
                 {"num_shared_experts", 1},
                 {"rope_scaling", nullptr},
                 {"rope_theta", 10000.0},
                 {"routed_scaling_factor", 2.446},
                 {"topk_group", 1},
                 {"rms_norm_eps", 1e-5},
                 {"vocab_size", 163840},
                 {"tie_word_embeddings", false}};
  config.update(changes);
  return config;
}

testing::AssertionResult refuses(const Json& changes, const std::string& part) {
  return test::throws([&] { parse(kimi(changes)); }, part);
}
testing::AssertionResult refuses_lists(const Json& changes, const std::string& part) {
  return refuses({{"linear_attn_config", lists(changes)}}, part);
}

TEST(KimiConfig, IsReadAsTheHubHasIt) {
  const DecoderConfig c = parse(kimi());
  EXPECT_EQ(c.recurrent_layers(), 20);
  EXPECT_TRUE(c.is_recurrent(0) && !c.is_recurrent(3) && c.has_attention(26));
  ASSERT_TRUE(c.delta_net);
  EXPECT_TRUE(c.delta_net->by_channel);
  EXPECT_EQ(c.delta_net->key_heads, 32);
  EXPECT_EQ(c.delta_net->value_heads, 32);
  EXPECT_EQ(c.delta_net->key_dim, 128);
  EXPECT_EQ(c.delta_net->value_dim, 128);
  EXPECT_EQ(c.delta_net->taps, 4);
  EXPECT_EQ(c.recurrent_sizes()->in_columns, 2 * 128 + 3 * 4096 + 32 + 2 * 4096);
  ASSERT_TRUE(c.latent);
  EXPECT_EQ(c.latent->rank, 512);
  EXPECT_EQ(c.latent->query_rank, 0);
  EXPECT_EQ(c.head_dim, 576);
  EXPECT_EQ(c.kv_heads, 1);
  EXPECT_FALSE(c.is_rotated(3) || c.rope_pairs);
  EXPECT_FLOAT_EQ(c.attention_scale, 1 / std::sqrt(192.0F));
  EXPECT_EQ(c.max_positions, 1048576);
  ASSERT_TRUE(c.experts);
  EXPECT_TRUE(!c.is_mixed(0) && c.is_mixed(1));
  EXPECT_EQ(c.ffn_dim, 9216);
  const Routing& routing = c.experts->routing;
  EXPECT_EQ(routing.experts, 256);
  EXPECT_EQ(routing.chosen, 8);
  EXPECT_EQ(routing.score, RouterScore::kSigmoid);
  EXPECT_EQ(routing.shared, SharedExpert::kPlain);
  EXPECT_EQ(routing.scale, 2.446F);
  EXPECT_TRUE(routing.normalised);
  EXPECT_EQ(c.experts->ffn_dim, 1024);
  EXPECT_EQ(c.experts->shared_ffn_dim, 1024);
  EXPECT_EQ(c.expert_names.gate, "w1");
  EXPECT_EQ(c.expert_names.shared, "shared_experts.");
}

TEST(KimiConfig, MayBeSpelledAsTransformersSpellsIt) {
  const DecoderConfig c =
      parse({{"model_type", "kimi_linear"},
             {"num_hidden_layers", 3},
             {"layer_types", {"full_attention", "linear_attention", "linear_attention"}},
             {"linear_attn_config", {{"num_heads", 6}}},
             {"linear_num_heads", 5},
             {"linear_head_dim", 24},
             {"linear_conv_kernel_dim", 3},
             {"mlp_layer_types", {"dense", "sparse", "dense"}},
             {"num_local_experts", 12},
             {"num_experts_per_tok", 3},
             {"n_shared_experts", 2},
             {"norm_topk_prob", false},
             {"n_group", 4},
             {"topk_group", 2}});
  EXPECT_TRUE(!c.is_recurrent(0) && c.is_recurrent(1) && c.is_recurrent(2));
  EXPECT_EQ(c.delta_net->key_heads, 6);
  EXPECT_EQ(c.delta_net->key_dim, 24);
  EXPECT_EQ(c.delta_net->taps, 3);
  EXPECT_TRUE(!c.is_mixed(0) && c.is_mixed(1) && !c.is_mixed(2));
  const Routing& routing = c.experts->routing;
  EXPECT_EQ(routing.experts, 12);
  EXPECT_EQ(routing.chosen, 3);
  EXPECT_EQ(routing.groups, 4);
  EXPECT_EQ(routing.chosen_groups, 2);
  EXPECT_FALSE(routing.normalised);
  EXPECT_EQ(c.experts->shared_ffn_dim, 2048);
  // Without any list all but every fourth, from the fifth on.
  const DecoderConfig usual = parse({{"model_type", "kimi_linear"}});
  EXPECT_EQ(usual.recurrent_layers(), 21);
  EXPECT_TRUE(usual.is_recurrent(0) && !usual.is_recurrent(4) && usual.is_recurrent(26));
}

TEST(KimiConfig, RefusesWhatItDoesNotCompute) {
  EXPECT_TRUE(refuses({{"mla_use_nope", false}}, "\"mla_use_nope\" is false, expected true"));
  EXPECT_TRUE(refuses({{"moe_router_activation_func", "softmax"}}, "\"sigmoid\""));
  EXPECT_TRUE(refuses({{"moe_layer_freq", 2}}, "moe_layer_freq"));
  EXPECT_TRUE(refuses({{"num_expert_group", 3}}, "num_expert_group"));
  EXPECT_TRUE(refuses({{"num_experts_per_token", 257}}, "num_experts_per_token"));
  EXPECT_TRUE(refuses({{"kv_lora_rank", 1000}}, "kv_lora_rank"));
  EXPECT_TRUE(refuses({{"layer_types", Json(27, "linear_attention")}}, "full attention among 27"));
  EXPECT_TRUE(refuses_lists({{"kda_layers", {1, 2, 3}}}, "(5 is missing)"));
  EXPECT_TRUE(refuses_lists({{"full_attn_layers", {3, 4}}}, "(3 is there twice)"));
  EXPECT_TRUE(refuses_lists({{"kda_layers", {0}}}, "kda_layers"));
  EXPECT_TRUE(refuses_lists({{"kda_layers", {28}}}, "kda_layers"));
  EXPECT_TRUE(refuses_lists({{"short_conv_kernel_size", 17}}, "short_conv_kernel_size"));
  EXPECT_TRUE(refuses_lists({{"num_heads", 0}}, "num_heads"));
}

/// A loader of the golden's folder whose config says something else, and what `fn` makes of it.
template <class Fn>
auto with_config(const Json& changes, const Fn& fn) {
  const test::TempFolder temp;
  std::filesystem::copy(
      test::model_path("kimi_linear"), temp.path(),
      std::filesystem::copy_options::recursive | std::filesystem::copy_options::overwrite_existing);
  std::ifstream file(test::model_path("kimi_linear") / "config.json");
  Json config = Json::parse(file);
  config.update(changes);
  temp.write("config.json", config.dump());
  const ModelFolder folder = ModelFolder::open(temp.path().string());
  return fn(*make_loader(folder));
}

std::string error_with(const Json& changes) {
  return with_config(changes, [](const ModelLoader& loader) -> std::string {
    try {
      loader.check(*make_cpu_backend(Numerics::kF32, 1));
    } catch (const std::exception& error) {
      return error.what();
    }
    return "";
  });
}

Json with_lists(Json full, Json recurrent, std::int64_t heads = 2, std::int64_t taps = 4) {
  return {{"linear_attn_config",
           {{"full_attn_layers", std::move(full)},
            {"kda_layers", std::move(recurrent)},
            {"head_dim", 8},
            {"num_heads", heads},
            {"short_conv_kernel_size", taps}}}};
}

TEST(KimiLoader, TellsWhatPathsKeep) {
  const ModelInfo info =
      with_config(Json::object(), [](const ModelLoader& loader) { return loader.info(); });
  EXPECT_EQ(info.kv.layers, 1);
  EXPECT_EQ(info.kv.head_dim, 16);
  ASSERT_TRUE(info.state);
  EXPECT_EQ(info.state->layers, 2);
  EXPECT_EQ(info.state->anchor_values, 2 * 8 * 8 + 3 * 48);
  EXPECT_EQ(info.state->journal_values, 3 * 16 + 48);
}

TEST(KimiLoader, HashesWhatResultsDependOn) {
  const auto hash = [](const Json& changes) {
    return with_config(changes,
                       [](const ModelLoader& loader) { return loader.info().config_hash; });
  };
  const std::uint64_t plain = hash(Json::object());
  for (const Json& changes :
       {with_lists({1}, {2, 3}), with_lists({2}, {1, 3}, 1), with_lists({2}, {1, 3}, 2, 3),
        Json{{"num_expert_group", 1}}, Json{{"routed_scaling_factor", 1.0}},
        Json{{"first_k_dense_replace", 1}}, Json{{"rms_norm_eps", 1e-6}}}) {
    EXPECT_NE(hash(changes), plain) << changes;
  }
  EXPECT_EQ(hash({{"use_cache", false}}), plain);
}

TEST(KimiLoader, NamesTensorsThatAreNotThere) {
  const auto expect = [](const std::string& error, const std::string& part) {
    EXPECT_NE(error.find(part), std::string::npos) << error;
  };
  EXPECT_EQ(error_with(Json::object()), "");
  expect(error_with(with_lists({1}, {2, 3})),
         "\"model.layers.0.self_attn.q_proj.weight\" has shape [16, 16], expected [24, 16]");
  expect(error_with(with_lists({3}, {1, 2})), "\"model.layers.1.self_attn.f_a_proj.weight\"");
  expect(error_with(with_lists({2}, {1, 3}, 2, 3)),
         "\"model.layers.0.self_attn.q_conv1d.weight\" has shape [16, 1, 4], expected [16, 1, 3]");
  expect(error_with(with_lists({2}, {1, 3}, 3)), "\"model.layers.0.self_attn.q_proj.weight\"");
  expect(error_with({{"first_k_dense_replace", 1}}),
         "\"model.layers.1.block_sparse_moe.gate.weight\"");
  expect(error_with({{"num_experts", 8}}), "\"model.layers.2.block_sparse_moe.gate.weight\"");
}

}  // namespace
}  // namespace dendrite
