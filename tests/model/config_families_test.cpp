// Configs of the families that differ from Llama by parts of layers: what keys mean, what missing
// ones mean, and what is refused.
#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <set>
#include <string>

#include "../io/test_files.h"
#include "model/config_reader.h"
#include "model/families.h"

namespace dendrite {
namespace {

using Json = nlohmann::json;
using Windows = std::vector<std::int64_t>;
using Flags = std::vector<bool>;

DecoderConfig parse(const Json& config) {
  return parse_config(config.dump(), std::nullopt, "folder");
}

testing::AssertionResult refuses(const Json& config, const std::string& part) {
  return test::throws([&] { parse(config); }, part);
}

TEST(Families, HaveNamesOfTheirOwnAndReadersOrTexts) {
  std::set<std::string> names;
  for (const Family& family : families()) {
    EXPECT_TRUE(names.insert(family.model_type).second) << family.model_type;
    EXPECT_FALSE(family.architectures.empty()) << family.model_type;
    EXPECT_NE(family.apply == nullptr, family.texts.empty()) << family.model_type;
    for (const std::string& text : family.texts) EXPECT_NE(find_family(text), nullptr) << text;
  }
  EXPECT_EQ(find_family("gpt2"), nullptr);
}

TEST(SmolLM3Config, SaysWhichLayersAreRotated) {
  const DecoderConfig every = parse({{"model_type", "smollm3"}, {"num_hidden_layers", 5}});
  EXPECT_EQ(every.unrotated, (Flags{false, false, false, true, false}));
  EXPECT_TRUE(every.tie_embeddings);
  EXPECT_EQ(every.rope.theta, 2e6);
  EXPECT_EQ(every.windows, Windows(5, 0));
  const Json listed = {{"model_type", "smollm3"},
                       {"num_hidden_layers", 3},
                       {"no_rope_layers", {0, 1, 0}},
                       {"use_sliding_window", true},
                       {"sliding_window", 64}};
  EXPECT_EQ(parse(listed).unrotated, (Flags{true, false, true}));
  EXPECT_EQ(parse(listed).windows, (Windows{64, 0, 64}));
  EXPECT_TRUE(refuses({{"model_type", "smollm3"}, {"no_rope_layers", {1}}},
                      "\"no_rope_layers\" is a list of 1, expected one for each of"));
}

const Json kLlama4 = {{"model_type", "llama4_text"}, {"num_hidden_layers", 4}};

TEST(Llama4Config, HasChunksWhereLayersHaveRope) {
  const DecoderConfig c = parse(kLlama4);
  EXPECT_EQ(c.unrotated, (Flags{false, false, false, true}));
  EXPECT_EQ(c.windows, (Windows{8192, 8192, 8192, 0}));
  EXPECT_TRUE(c.chunked);
  EXPECT_TRUE(c.rope_pairs);
  EXPECT_TRUE(c.qk_norm_plain);
  EXPECT_EQ(c.rope.theta, 5e5);
  EXPECT_EQ(c.heads, 40);
  EXPECT_EQ(c.mlp_names.block, "feed_forward.");
  Json listed = kLlama4;
  listed.update({{"no_rope_layers", {0, 1, 1, 1}}, {"attention_chunk_size", 32}});
  EXPECT_EQ(parse(listed).windows, (Windows{0, 32, 32, 32}));
  listed["no_rope_layers"] = Json::array();
  EXPECT_EQ(parse(listed).windows, (Windows{32, 32, 32, 0}));
  listed["layer_types"] = {"full_attention", "chunked_attention", "full_attention",
                           "full_attention"};
  EXPECT_EQ(parse(listed).windows, (Windows{0, 32, 0, 0}));
  listed["layer_types"][0] = "sliding_attention";
  EXPECT_TRUE(refuses(listed, "\"full_attention\" or \"chunked_attention\" in each place"));
  listed.erase("layer_types");
  listed["attention_chunk_size"] = nullptr;
  EXPECT_TRUE(refuses(listed, "\"attention_chunk_size\" is null, expected a number"));
}

TEST(Llama4Config, ScalesQueriesOfLayersWithoutRope) {
  const DecoderConfig c = parse(kLlama4);
  ASSERT_TRUE(c.query_growth);
  EXPECT_TRUE(c.query_growth->unrotated);
  EXPECT_EQ(c.query_growth->at(8190), 1);
  EXPECT_FLOAT_EQ(c.query_growth->at(8191), 1 + 0.1F * std::log(2.0F));
  Json json = kLlama4;
  for (const Json& off : {Json(false), Json(0)}) {  // which older files say by a number
    json["attn_temperature_tuning"] = off;
    EXPECT_FALSE(parse(json).query_growth);
  }
  json["attn_temperature_tuning"] = 4;
  json.update({{"floor_scale", 16}, {"attn_scale", 0.5}});
  EXPECT_FLOAT_EQ(parse(json).query_growth->at(31), 1 + 0.5F * std::log(3.0F));
}

TEST(Llama4Config, HasMixturesThatWeighInputs) {
  Json json = kLlama4;
  json["interleave_moe_layer_step"] = 2;
  const DecoderConfig c = parse(json);
  EXPECT_EQ(c.mixed, (Flags{false, true, false, true}));
  EXPECT_EQ(c.ffn_dim, 16384);
  ASSERT_TRUE(c.experts);
  EXPECT_EQ(c.experts->ffn_dim, 8192);
  EXPECT_EQ(c.experts->shared_ffn_dim, 8192);
  EXPECT_EQ(c.experts->routing.experts, 16);
  EXPECT_EQ(c.experts->routing.chosen, 1);
  EXPECT_TRUE(c.experts->routing.weighs_inputs);
  EXPECT_TRUE(c.expert_names.transposed);
  json["moe_layers"] = {0};
  EXPECT_EQ(parse(json).mixed, (Flags{true, false, false, false}));
  json.update({{"moe_layers", Json::array()}, {"interleave_moe_layer_step", 0}});
  EXPECT_FALSE(parse(json).experts);  // Llama Guard 4
  json["moe_layers"] = {4};
  EXPECT_TRUE(refuses(json, "\"moe_layers\""));
}

TEST(Llama4Config, TakesScoutsRopeAndRefusesWhatItsNormWouldTakeBack) {
  Json json = kLlama4;
  json["rope_scaling"] = {{"rope_type", "llama3"},
                          {"factor", 16.0},
                          {"low_freq_factor", 1.0},
                          {"high_freq_factor", 1.0},
                          {"original_max_position_embeddings", 8192}};
  EXPECT_EQ(parse(json).rope.type, RopeType::kLlama3);
  json["rope_scaling"] = {{"rope_type", "yarn"}, {"factor", 4.0}};
  EXPECT_TRUE(refuses(json, "\"use_qk_norm\""));
  json["use_qk_norm"] = false;
  EXPECT_EQ(parse(json).rope.type, RopeType::kYarn);
}

TEST(Llama4Config, OfTextAndMoreIsItsText) {
  const Json json = {{"model_type", "llama4"},
                     {"architectures", {"Llama4ForConditionalGeneration"}},
                     {"text_config", kLlama4}};
  EXPECT_EQ(parse(json).model_type, "llama4");
  EXPECT_EQ(parse(json).windows, (Windows{8192, 8192, 8192, 0}));
  EXPECT_FALSE(parse(json).tie_embeddings);
}

TEST(GraniteConfig, HasItsMultipliers) {
  const Json json = {{"model_type", "granite"},
                     {"embedding_multiplier", 12},
                     {"attention_multiplier", 0.015625},
                     {"residual_multiplier", 0.22},
                     {"logits_scaling", 8}};
  const DecoderConfig c = parse(json);
  EXPECT_EQ(c.embedding_scale, 12);
  EXPECT_EQ(c.attention_scale, 0.015625F);
  EXPECT_EQ(c.residual_scale, 0.22F);
  EXPECT_EQ(c.logit_scale, 0.125F);
  EXPECT_TRUE(c.scales());
  EXPECT_FALSE(parse({{"model_type", "granite"}}).scales());
  Json mixture = json;
  mixture["model_type"] = "granitemoe";
  EXPECT_EQ(parse(mixture).experts->routing.scale, 0.22F);
  EXPECT_TRUE(parse(mixture).experts->routing.normalised);
  EXPECT_TRUE(
      refuses({{"model_type", "granite"}, {"logits_scaling", 0}}, "\"logits_scaling\" is 0"));
}

TEST(PhiConfig, IsFusedAndMayBeLong) {
  Json json = {
      {"model_type", "phi3"},
      {"hidden_size", 64},
      {"num_attention_heads", 2},
      {"partial_rotary_factor", 0.75},
      {"max_position_embeddings", 131072},
      {"original_max_position_embeddings", 4096},
      {"rope_scaling",
       {{"type", "longrope"}, {"short_factor", Json::array()}, {"long_factor", Json::array()}}}};
  EXPECT_TRUE(refuses(json, "short_factor\" is a list of 0, expected 12 numbers, one a pair"));
  for (int i = 0; i < 12; ++i) json["rope_scaling"]["short_factor"].push_back(1 + i);
  const DecoderConfig c = parse(json);
  EXPECT_TRUE(c.fused_qkv && c.fused_mlp);
  EXPECT_EQ(c.rotary_dim, 24);
  EXPECT_EQ(c.rope.type, RopeType::kLongRope);
  EXPECT_EQ(c.rope.factors.size(), 12u);
  EXPECT_EQ(c.rope.position_limit(), 4096);
  EXPECT_TRUE(c.max_positions_hard);
  EXPECT_NEAR(attention_scaling(c.rope), std::sqrt(1 + std::log(32.0) / std::log(4096.0)), 1e-6);
  EXPECT_EQ(parse({{"model_type", "phi3"}}).rope.type, RopeType::kDefault);
  EXPECT_TRUE(refuses({{"model_type", "phi3"}, {"rope_scaling", {{"type", "linear"}}}},
                      "\"rope_scaling.type\" is \"linear\""));
}

TEST(MinistralConfig, MakesQueriesGrow) {
  const DecoderConfig missing = parse({{"model_type", "ministral3"}});
  ASSERT_TRUE(missing.query_growth);
  EXPECT_EQ(missing.query_growth->length, 16384);
  EXPECT_EQ(missing.rope.type, RopeType::kYarn);
  EXPECT_EQ(missing.rope.factor, 16);
  EXPECT_EQ(attention_scaling(missing.rope), 1);
  EXPECT_EQ(missing.windows, Windows(34, 0));
  EXPECT_EQ(missing.query_growth->at(16383), 1);
  EXPECT_NEAR(missing.query_growth->at(40000), 1 + 0.1 * std::log(3.0), 1e-6);
  const Json rope = {{"rope_type", "yarn"},
                     {"factor", 4},
                     {"original_max_position_embeddings", 64},
                     {"llama_4_scaling_beta", 0.5}};
  const Json nested = {{"model_type", "mistral3"},
                       {"text_config", {{"model_type", "ministral3"}, {"rope_parameters", rope}}}};
  const DecoderConfig c = parse(nested);
  EXPECT_EQ(c.model_type, "mistral3");
  EXPECT_EQ(c.query_growth->length, 64);
  EXPECT_EQ(c.query_growth->beta, 0.5);
  EXPECT_TRUE(c.tie_embeddings);
  EXPECT_FALSE(parse({{"model_type", "mistral3"}, {"text_config", Json::object()}}).query_growth);
  EXPECT_TRUE(refuses({{"model_type", "mistral3"}, {"text_config", {{"model_type", "llama"}}}},
                      "\"text_config.model_type\" is \"llama\", expected \"mistral\" or"));
}

TEST(OlmoConfig, NormsWhatItGives) {
  const DecoderConfig two = parse({{"model_type", "olmo2"}});
  EXPECT_TRUE(two.qk_norm_whole);
  EXPECT_EQ(two.norms.before_mixer, "");
  EXPECT_EQ(two.norms.behind_mixer, "post_attention_layernorm");
  EXPECT_EQ(two.norms.behind_ffn, "post_feedforward_layernorm");
  EXPECT_FALSE(two.local_rope);
  const DecoderConfig three = parse({{"model_type", "olmo3"}, {"num_hidden_layers", 4}});
  EXPECT_EQ(three.windows, (Windows{4096, 4096, 4096, 0}));
  EXPECT_EQ(three.rope.theta, 5e5);
  EXPECT_EQ(three.local_rope->theta, 5e5);
  const Json scaled = {
      {"model_type", "olmo3"},
      {"rope_scaling",
       {{"rope_type", "yarn"}, {"factor", 8}, {"original_max_position_embeddings", 8192}}}};
  EXPECT_EQ(parse(scaled).rope.type, RopeType::kYarn);
  EXPECT_EQ(parse(scaled).local_rope->type, RopeType::kDefault);
}

TEST(ExaoneConfig, RotatesLayersWithWindowsAlone) {
  const DecoderConfig c = parse({{"model_type", "exaone4"}, {"num_hidden_layers", 4}});
  EXPECT_EQ(c.windows, (Windows{4096, 4096, 4096, 0}));
  EXPECT_EQ(c.unrotated, (Flags{false, false, false, true}));
  EXPECT_TRUE(parse({{"model_type", "exaone4"}, {"sliding_window", nullptr}}).unrotated.empty());
}

TEST(GemmaConfig, HasWindowsCapsAndScales) {
  const DecoderConfig two = parse({{"model_type", "gemma2"}, {"num_hidden_layers", 3}});
  EXPECT_EQ(two.windows, (Windows{4096, 0, 4096}));
  EXPECT_EQ(two.attention_soft_cap, 50);
  EXPECT_EQ(two.logit_soft_cap, 30);
  EXPECT_EQ(two.attention_scale, 0.0625F);
  EXPECT_EQ(two.embedding_scale, 48);
  EXPECT_EQ(two.activation.kind, Activation::Kind::kGelu);
  EXPECT_TRUE(two.zero_centred_norms);
  EXPECT_TRUE(two.tie_embeddings);
  EXPECT_FALSE(two.qk_norm);
  const Json none = {{"model_type", "gemma2"},
                     {"attn_logit_softcapping", nullptr},
                     {"final_logit_softcapping", nullptr},
                     {"hidden_act", "gelu"}};
  EXPECT_EQ(parse(none).attention_soft_cap, 0);
  EXPECT_EQ(parse(none).logit_soft_cap, 0);
  EXPECT_TRUE(refuses({{"model_type", "gemma2"}, {"hidden_activation", "gelu"}},
                      "\"hidden_activation\" is \"gelu\", expected \"gelu_pytorch_tanh\""));

  const DecoderConfig three = parse({{"model_type", "gemma3_text"}});
  EXPECT_TRUE(three.qk_norm);
  EXPECT_EQ(three.attention_soft_cap, 0);
  EXPECT_EQ(three.rope.theta, 1e6);
  EXPECT_EQ(three.local_rope->theta, 1e4);
  EXPECT_EQ(three.windows[4], 4096);
  EXPECT_EQ(three.windows[5], 0);
  const Json hub = {
      {"model_type", "gemma3"},
      {"text_config",
       {{"sliding_window", 1024}, {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}}}}};
  EXPECT_EQ(parse(hub).rope.type, RopeType::kLinear);
  EXPECT_EQ(parse(hub).local_rope->type, RopeType::kDefault);
  EXPECT_EQ(parse(hub).vocab, 262208);
  const Json by_kind = {{"model_type", "gemma3_text"},
                        {"rope_parameters",
                         {{"full_attention", {{"rope_type", "default"}, {"rope_theta", 2e6}}},
                          {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 3e4}}}}}};
  EXPECT_EQ(parse(by_kind).rope.theta, 2e6);
  EXPECT_EQ(parse(by_kind).local_rope->theta, 3e4);
  EXPECT_TRUE(refuses({{"model_type", "gemma3_text"}, {"use_bidirectional_attention", true}},
                      "use_bidirectional_attention"));
}

Json gemma4(const Json& own = Json::object()) {
  Json config = {{"model_type", "gemma4_text"}, {"num_hidden_layers", 6}};
  config.update(own);
  return config;
}

TEST(Gemma4Config, HasHeadsOfTwoSizes) {
  const DecoderConfig plain = parse(gemma4());
  EXPECT_EQ(plain.windows, (Windows{512, 512, 512, 512, 512, 0}));
  EXPECT_EQ(*plain.wide, (KvLayers{1, 4, 512}));
  EXPECT_EQ(plain.head_dim, 256);
  EXPECT_EQ(plain.attention_scale, 1);
  EXPECT_FALSE(plain.zero_centred_norms);
  EXPECT_TRUE(plain.value_norm && plain.qk_norm && plain.layer_scales && !plain.wide_value_is_key);
  EXPECT_EQ(plain.rope.type, RopeType::kProportional);
  EXPECT_EQ(plain.rope.rotated_part, 0.25);
  EXPECT_EQ(plain.local_rope->theta, 1e4);
  EXPECT_EQ(plain.layer_inputs->dim, 256);
  EXPECT_EQ(plain.logit_soft_cap, 0);

  const Json keys = gemma4(
      {{"attention_k_eq_v", true}, {"num_global_key_value_heads", 2}, {"global_head_dim", 64}});
  EXPECT_EQ(*parse(keys).wide, (KvLayers{1, 2, 64}));
  EXPECT_TRUE(parse(keys).wide_value_is_key);
  // Without attention_k_eq_v the other key says nothing.
  EXPECT_EQ(*parse(gemma4({{"num_global_key_value_heads", 2}})).wide, (KvLayers{1, 4, 512}));

  const Json one = {{"head_dim", 64}, {"num_key_value_heads", 1}};
  EXPECT_EQ(*parse(gemma4({{"per_layer_config", {{"5", one}}}})).wide, (KvLayers{1, 1, 64}));
  EXPECT_TRUE(
      refuses(gemma4({{"per_layer_config", {{"4", one}}}}), "for each layer of full attention"));
  EXPECT_TRUE(refuses(gemma4({{"per_layer_config", {{"6", one}}}}), "a number of a layer, 0 to 5"));
  EXPECT_TRUE(
      refuses(gemma4({{"per_layer_config", {{"5", {{"intermediate_size", 3}}}}}}), "no such key"));
  EXPECT_TRUE(
      refuses({{"model_type", "llama"}, {"per_layer_config", {{"5", one}}}}, "layers that differ"));

  const Json full = gemma4({{"num_hidden_layers", 1}, {"hidden_size_per_layer_input", 0}});
  EXPECT_FALSE(parse(full).wide);
  EXPECT_EQ(parse(full).head_dim, 512);
  EXPECT_FALSE(parse(full).layer_inputs);
}

TEST(Gemma4Config, SharesKAndV) {
  const Json types = {"sliding_attention", "full_attention",    "sliding_attention",
                      "full_attention",    "sliding_attention", "sliding_attention"};
  const DecoderConfig shared = parse(
      gemma4({{"num_kv_shared_layers", 2}, {"use_double_wide_mlp", true}, {"layer_types", types}}));
  EXPECT_EQ(shared.windows.back(), 0);  // whatever the file says
  EXPECT_TRUE(shared.has_own_kv(3));
  EXPECT_FALSE(shared.has_own_kv(4));
  EXPECT_EQ(shared.ffn_of(3), 9216);
  EXPECT_EQ(shared.ffn_of(4), 18432);
  EXPECT_TRUE(refuses(gemma4({{"num_kv_shared_layers", 1}}),
                      "takes K and V of an earlier one of its kind"));
  EXPECT_TRUE(refuses(gemma4({{"vocab_size_per_layer_input", 8}}), "at least vocab_size"));
  EXPECT_TRUE(
      refuses(gemma4({{"use_bidirectional_attention", "all"}}), "use_bidirectional_attention"));
}

TEST(Gemma4Config, MayHaveExpertsBesideTheMlp) {
  const DecoderConfig mixture = parse(gemma4({{"enable_moe_block", true},
                                              {"num_experts", 128},
                                              {"top_k_experts", 8},
                                              {"moe_intermediate_size", 704}}));
  EXPECT_TRUE(mixture.experts_beside);
  EXPECT_EQ(mixture.experts->routing.chosen, 8);
  EXPECT_EQ(mixture.ffn_dim, 9216);
  EXPECT_EQ(mixture.widest_ffn(), 9216);
  EXPECT_EQ(mixture.expert_activation.kind, Activation::Kind::kGelu);
  EXPECT_TRUE(refuses(gemma4({{"enable_moe_block", true}}), "num_experts"));
  const DecoderConfig unified =
      parse({{"model_type", "gemma4_unified"}, {"text_config", {{"num_hidden_layers", 6}}}});
  EXPECT_EQ(unified.windows.front(), 1024);
  EXPECT_FALSE(unified.layer_inputs);
}

TEST(LatentConfig, KeepsOneHeadOfWhatIsRotatedAndTheLatent) {
  const DecoderConfig flash = parse({{"model_type", "glm4_moe_lite"}});
  ASSERT_TRUE(flash.latent);
  EXPECT_EQ(flash.kv_heads, 1);
  EXPECT_EQ(flash.head_dim, 576);
  EXPECT_EQ(flash.rotary_dim, 64);
  EXPECT_EQ(flash.attention_scale, 0.0625F);
  EXPECT_TRUE(flash.rope_pairs);
  EXPECT_EQ(flash.experts->routing.scale, 1.8F);
  EXPECT_EQ(flash.mixed_layers(), 46);
  const Json rope = {{"rope_type", "yarn"}, {"factor", 4}, {"mscale_all_dim", 1}};
  const DecoderConfig three =
      parse({{"model_type", "deepseek_v3"}, {"q_lora_rank", nullptr}, {"rope_scaling", rope}});
  EXPECT_EQ(three.latent->query_rank, 0);
  EXPECT_EQ(three.experts->routing.groups, 8);
  const double m = 0.1 * std::log(4.0) + 1;
  EXPECT_NEAR(three.attention_scale, m * m / std::sqrt(192.0), 1e-6);
  const DecoderConfig two = parse({{"model_type", "deepseek_v2"}, {"norm_topk_prob", true}});
  EXPECT_EQ(two.experts->routing.score, RouterScore::kSoftmax);
  EXPECT_FALSE(two.experts->routing.normalised);
  EXPECT_TRUE(two.expert_names.correction.empty());
  EXPECT_EQ(two.experts->shared_ffn_dim, 2 * 1407);
  EXPECT_TRUE(refuses({{"model_type", "deepseek_v2"}, {"topk_method", "group_limited_greedy"}},
                      "\"topk_method\" is \"group_limited_greedy\""));
  EXPECT_TRUE(refuses({{"model_type", "deepseek_v3"}, {"kv_lora_rank", 1024}},
                      "with qk_rope_head_dim at most 576"));
  EXPECT_TRUE(
      refuses({{"model_type", "deepseek_v3"}, {"q_lora_rank", nullptr}, {"attention_bias", true}},
              "\"attention_bias\" is true, expected false where q_lora_rank is null"));
  EXPECT_EQ(parse({{"model_type", "mistral4"}}).head_dim, 320);
}

TEST(RoutedConfig, ReadsSigmoidsCorrectionsAndGroups) {
  const Json json = {{"model_type", "glm4_moe"},
                     {"num_hidden_layers", 3},
                     {"head_dim", 128},
                     {"n_routed_experts", 16},
                     {"num_experts_per_tok", 4},
                     {"n_shared_experts", 2},
                     {"moe_intermediate_size", 10},
                     {"routed_scaling_factor", 2.5},
                     {"n_group", 4},
                     {"topk_group", 2}};
  const DecoderConfig c = parse(json);
  const Routing& routing = c.experts->routing;
  EXPECT_EQ(routing.score, RouterScore::kSigmoid);
  EXPECT_EQ(routing.groups, 4);
  EXPECT_EQ(routing.chosen_groups, 2);
  EXPECT_EQ(routing.scale, 2.5F);
  EXPECT_TRUE(routing.normalised);
  EXPECT_EQ(routing.shared, SharedExpert::kPlain);
  EXPECT_EQ(c.experts->shared_ffn_dim, 20);
  EXPECT_EQ(c.mixed, (Flags{false, true, true}));
  EXPECT_EQ(c.rotary_dim, 64);
  Json few = json;
  few["topk_group"] = 0;
  EXPECT_TRUE(refuses(few, "\"topk_group\" is 0"));
  few["topk_group"] = 1;
  few["num_experts_per_tok"] = 5;
  EXPECT_TRUE(refuses(few, "\"topk_group\" is 1, expected at most n_group, and as many as hold"));
  few = json;
  few["n_group"] = 3;
  EXPECT_TRUE(refuses(few, "\"n_group\" is 3, expected a divisor of the number of experts, 16"));

  const DecoderConfig minimax = parse({{"model_type", "minimax_m2"}, {"rotary_dim", 64}});
  EXPECT_EQ(minimax.rotary_dim, 64);
  EXPECT_TRUE(minimax.qk_norm_whole);
  EXPECT_EQ(minimax.expert_names.gate, "w1");
  EXPECT_EQ(minimax.experts->routing.shared, SharedExpert::kNone);

  const DecoderConfig hy = parse({{"model_type", "hy_v3"}, {"num_hidden_layers", 3}});
  EXPECT_EQ(hy.mixed, (Flags{false, true, true}));
  EXPECT_EQ(hy.experts->routing.scale, 2.826F);
  EXPECT_EQ(hy.expert_names.shared, "shared_mlp.");
  EXPECT_TRUE(refuses({{"model_type", "hy_v3"}, {"mlp_bias", true}}, "\"mlp_bias\""));
  EXPECT_TRUE(
      refuses({{"model_type", "hy_v3"}, {"num_hidden_layers", 1}, {"mlp_layer_types", {"thick"}}},
              "\"thick\" is not supported"));
}

}  // namespace
}  // namespace dendrite
