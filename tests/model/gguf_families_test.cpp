// Families of models as GGUF files, made as llama.cpp's converter makes them, beside the folders
// that they were made of.
#include <gtest/gtest.h>

#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "dendrite/dendrite.h"
#include "dendrite/error.h"
#include "io/gguf_model.h"
#include "io/json_file.h"
#include "support/gguf_logits.h"
#include "support/gguf_of_folder.h"
#include "support/golden_data.h"
#include "support/paths.h"
#include "support/temporary_folder.h"

namespace dendrite {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using test::expect_same_logits;

class GgufFamilies : public testing::Test {
 protected:
  static Json config_of_golden(const std::string& name) {
    const fs::path file = test::model_path(name) / "config.json";
    return Json::parse(with_named_floats(read_text(file, 1 << 20)));
  }

  /// A folder of tests/data/models, but that its config.json says this, too.
  fs::path folder_of(const std::string& name, const Json& changes) {
    const fs::path from = test::model_path(name);
    if (changes.empty()) return from;
    const fs::path out = temp_.path() / name;
    fs::create_directories(out);
    for (const auto& file : fs::directory_iterator(from)) {
      fs::copy_file(file.path(), out / file.path().filename(),
                    fs::copy_options::overwrite_existing);
    }
    Json config = config_of_golden(name);
    config.merge_patch(changes);
    std::ofstream(out / "config.json") << config;
    return out;
  }

  std::string file_of(const fs::path& folder) {
    const fs::path file = temp_.path() / (folder.filename().string() + ".gguf");
    test::GgufOfFolder(folder, "").write()[0].write(file);
    return file.string();
  }

  void expect_same(const std::string& name, const Json& changes = Json::object()) {
    const fs::path folder = folder_of(name, changes);
    const std::string file = file_of(folder);
    expect_same_logits(file, folder.string(), "auto");
    if (test::on_cuda() && test::is_mixture(name)) return;  // in bf16 alone on a GPU
    expect_same_logits(file, folder.string(), "f32");
  }

  /// The file of a golden, before it is written.
  static test::GgufWriter writer_of(const std::string& name) {
    return test::GgufOfFolder(test::model_path(name), "").write()[0];
  }

  /// What a file says as a config.
  Json config_of(const test::GgufWriter& writer) {
    const fs::path file = temp_.path() / "m.gguf";
    writer.write(file);
    return Json::parse(GgufModel(file).text("config.json", 1 << 20));
  }

  /// Less a key or a tensor: one of another name takes its place.
  static test::GgufWriter without(test::GgufWriter writer, std::string_view name) {
    writer.rename(name);
    return writer;
  }

  std::string error_of(const test::GgufWriter& writer) {
    try {
      config_of(writer);
    } catch (const Error& error) {
      return error.what();
    }
    return "none";
  }

  TemporaryFolder temp_;
};

TEST_F(GgufFamilies, OfHybridsHaveTheBitsOfTheirFolders) {
  for (const char* name : {"qwen3_5_text", "qwen3_5_moe_text", "qwen3_next", "lfm2", "lfm2_moe"}) {
    expect_same(name);
  }
}

TEST_F(GgufFamilies, OfMamba2HaveTheBitsOfTheirFolders) {
  // Files say nothing of what dt is held within, and hybrids of Granite have no RoPE there.
  expect_same("granitemoehybrid", {{"time_step_limit", nullptr}});
  expect_same("granitemoehybrid_moe", {{"position_embedding_type", "nope"}});
  expect_same("nemotron_h", {{"time_step_min", 0.001}});
  expect_same("nemotron_h_moe");
}

TEST_F(GgufFamilies, OfMamba2SayWhatLayersAre) {
  const Json granite = config_of(writer_of("granitemoehybrid"));
  EXPECT_EQ(granite["layer_types"], (Json{"mamba", "attention", "mamba"}));
  EXPECT_EQ(granite["position_embedding_type"], "nope");
  EXPECT_EQ(granite["mamba_d_head"], 16);
  EXPECT_EQ(granite["mamba_proj_bias"], true);
  EXPECT_EQ(granite["num_local_experts"], 0);
  EXPECT_EQ(granite["shared_intermediate_size"], 40);
  const Json nemotron = config_of(writer_of("nemotron_h"));
  EXPECT_EQ(nemotron["layers_block_type"], (Json{"mamba", "mlp", "attention", "mamba", "mlp"}));
  EXPECT_EQ(nemotron["intermediate_size"], 56);
  EXPECT_EQ(nemotron["head_dim"], 16);
  const Json mixture = config_of(writer_of("nemotron_h_moe"));
  EXPECT_EQ(mixture["layers_block_type"], (Json{"mamba", "moe", "attention", "moe"}));
  EXPECT_EQ(mixture["routed_scaling_factor"], 1.5);
  EXPECT_EQ(mixture["use_bias"], true);
}

TEST_F(GgufFamilies, OfGemmaHaveTheBitsOfTheirFolders) {
  // Files say nothing of what scores are divided by: it is the size of a head.
  expect_same("gemma2", {{"query_pre_attn_scalar", 32}});
  expect_same("gemma3_text", {{"query_pre_attn_scalar", 32}});
  expect_same("gemma3_text",
              {{"query_pre_attn_scalar", 32},
               {"rope_parameters", {{"sliding_attention", {{"rope_theta", 5000.0}}}}}});
  expect_same("gemma4_text");
  // Nor that angles are divided, which no model has.
  const Json whole = {{"full_attention", {{"factor", 1.0}}}};
  expect_same("gemma4", {{"text_config", {{"rope_parameters", whole}}}});
}

TEST_F(GgufFamilies, OfGemma4SayHeadsAndWidthsOfEachLayer) {
  const Json shared = config_of(writer_of("gemma4_text"));
  EXPECT_EQ(shared["head_dim"], 16);
  EXPECT_EQ(shared["global_head_dim"], 32);
  EXPECT_EQ(shared["num_kv_shared_layers"], 3);
  EXPECT_EQ(shared["use_double_wide_mlp"], true);
  EXPECT_EQ(shared["hidden_size_per_layer_input"], 8);
  EXPECT_EQ(shared["attention_k_eq_v"], false);
  EXPECT_EQ(shared["rope_parameters"]["full_attention"]["partial_rotary_factor"], 0.25);
  const Json mixture = config_of(writer_of("gemma4"));
  EXPECT_EQ(mixture["attention_k_eq_v"], true);
  EXPECT_EQ(mixture["num_key_value_heads"], 2);
  EXPECT_EQ(mixture["num_global_key_value_heads"], 1);
  EXPECT_EQ(mixture["top_k_experts"], 2);
  EXPECT_EQ(mixture["hidden_size_per_layer_input"], 0);
  test::GgufWriter heads = without(writer_of("gemma4"), "gemma4.attention.head_count_kv");
  heads.i32s("gemma4.attention.head_count_kv", {2, 1, 1, 1});
  EXPECT_NE(error_of(heads).find("one number for each kind of layers"), std::string::npos);
  test::GgufWriter widths = without(writer_of("gemma4_text"), "gemma4.feed_forward_length");
  widths.i32s("gemma4.feed_forward_length", {40, 40, 40, 40, 80, 80});
  EXPECT_NE(error_of(widths).find("\"gemma4.feed_forward_length\""), std::string::npos);
}

TEST_F(GgufFamilies, OfMixturesHaveTheBitsOfTheirFolders) {
  for (const char* name : {"mixtral", "granitemoe", "glm4_moe", "glm4_moe_groups", "hy_v3",
                           "minimax_m2", "gpt_oss_mxfp4"}) {
    expect_same(name);
  }
  // Nor of these, which all models have alike.
  expect_same("qwen3_moe_fused", {{"norm_topk_prob", true}});
  expect_same("gpt_oss", {{"swiglu_limit", 7.0}});
  expect_same("gpt_oss", {{"swiglu_limit", 7.0},
                          {"rope_parameters", {{"beta_fast", 4.0}, {"beta_slow", 0.5}}}});
  expect_same("mixtral", {{"sliding_window", 24}});
}

/// Files say nothing of chunks, of layers without RoPE and of how their queries grow.
TEST_F(GgufFamilies, OfLlama4HaveTheBitsOfTheirFolders) {
  const Json said = {{"attention_chunk_size", nullptr}, {"no_rope_layers", nullptr},
                     {"floor_scale", nullptr},          {"attn_scale", nullptr},
                     {"attn_temperature_tuning", true}, {"use_qk_norm", true},
                     {"interleave_moe_layer_step", 2}};
  expect_same("llama4_text", said);
  expect_same("llama4", {{"text_config", said}});
}

TEST_F(GgufFamilies, OfLlama4SayWhichLayersAreMixtures) {
  const Json config = config_of(writer_of("llama4_text"));
  EXPECT_EQ(config["intermediate_size"], 8);
  EXPECT_EQ(config["intermediate_size_mlp"], 16);
  EXPECT_EQ(config["interleave_moe_layer_step"], 2);
  EXPECT_EQ(config["use_qk_norm"], true);
  EXPECT_EQ(config["attention_chunk_size"], 8192);
  EXPECT_EQ(config["no_rope_layer_interval"], 4);
  EXPECT_EQ(config["attn_scale"], 0.1);
  EXPECT_EQ(config["floor_scale"], 8192);
  const std::string key = "llama4.expert_count";
  test::GgufWriter maverick = without(writer_of("llama4_text"), key);
  maverick.u32(key, 128);
  EXPECT_EQ(config_of(maverick)["use_qk_norm"], false);
}

TEST_F(GgufFamilies, OfDenseModelsHaveTheBitsOfTheirFolders) {
  for (const char* name :
       {"ministral3", "phi3", "phi3_longrope_short", "granite", "smollm3", "olmo2", "olmo3",
        "olmo3_types", "exaone4", "glm4", "seed_oss", "seed_oss_out_bias", "ernie4_5"}) {
    expect_same(name);
  }
  expect_same("olmo3", {{"rope_scaling", {{"attention_factor", 1.3}}}});
}

/// Granite 4's, whose files have a number for each layer, and keys of its hybrids.
TEST_F(GgufFamilies, MaySayANumberForEachLayer) {
  const fs::path path = temp_.path() / "granite4.gguf";
  const std::string key = "granite.attention.head_count_kv";
  test::GgufWriter writer = without(writer_of("granite"), key);
  writer.i32s(key, {1, 1});
  writer.u32("granite.ssm.inner_size", 64);
  writer.u32("granite.expert_shared_feed_forward_length", 72);
  writer.write(path);
  expect_same_logits(path.string(), test::model_path("granite").string(), "auto");

  test::GgufWriter other = without(writer_of("granite"), key);
  other.i32s(key, {1, 2});
  EXPECT_NE(error_of(other).find(in_quotes(key) + " is an array of 2 values, expected the same"),
            std::string::npos)
      << error_of(other);
  test::GgufWriter wider = writer_of("granite");
  wider.u32("granite.expert_shared_feed_forward_length", 80);
  EXPECT_NE(error_of(wider).find("is 80, expected 72"), std::string::npos) << error_of(wider);
}

TEST_F(GgufFamilies, SayWhichLayersHaveWindows) {
  const auto types_of = [&](const test::GgufWriter& writer) {
    std::string out;
    const Json config = config_of(writer);
    for (const Json& type : config["layer_types"]) {
      out += type == "sliding_attention" ? 's' : 'f';
    }
    return out;
  };
  const std::string name = "gemma3.attention.sliding_window_pattern";
  EXPECT_EQ(types_of(writer_of("gemma3_text")), "ssfs");  // one by one
  for (const auto& [step, expected] :
       {std::pair{0, "ssss"}, {1, "ffff"}, {2, "sfsf"}, {3, "ssfs"}, {6, "ssss"}}) {
    test::GgufWriter writer = without(writer_of("gemma3_text"), name);
    writer.u32(name, static_cast<std::uint32_t>(step));
    EXPECT_EQ(types_of(writer), expected);
  }
  EXPECT_EQ(types_of(without(writer_of("gemma3_text"), name)), "ssss");  // each sixth
  EXPECT_EQ(types_of(writer_of("gemma2")), "sfs");
  EXPECT_EQ(types_of(writer_of("gpt_oss")), "sfs");
  test::GgufWriter few = without(writer_of("gemma3_text"), name);
  few.booleans(name, {true, false});
  EXPECT_NE(error_of(few).find(in_quotes(name) + " is an array of 2 values, expected 4 values"),
            std::string::npos)
      << error_of(few);
}

TEST_F(GgufFamilies, OfGemmaDivideScoresAsTheirLargestModelsDo) {
  EXPECT_EQ(config_of(writer_of("gemma2"))["query_pre_attn_scalar"], 32.0);
  test::GgufWriter largest = without(writer_of("gemma2"), "gemma2.block_count");
  largest.u32("gemma2.block_count", 46);
  EXPECT_EQ(config_of(largest)["query_pre_attn_scalar"], 16.0);  // 32 of width, 2 heads
}

TEST_F(GgufFamilies, LeaveOutLayersThatPredictFurtherTokens) {
  const fs::path path = temp_.path() / "glm.gguf";
  writer_of("glm4_moe").write(path);  // whose folder has one
  const GgufModel file(path);
  EXPECT_EQ(Json::parse(file.text("config.json", 1 << 20))["num_hidden_layers"], 3);
  EXPECT_EQ(file.find("model.layers.3.input_layernorm.weight"), nullptr);
  EXPECT_NE(file.find("model.layers.2.input_layernorm.weight"), nullptr);
  ASSERT_EQ(file.warnings().size(), 1u);
  EXPECT_NE(file.warnings()[0].find("layers from blk.3 on predict further tokens"),
            std::string::npos);
  test::GgufWriter all = without(writer_of("glm4_moe"), "glm4moe.nextn_predict_layers");
  all.u32("glm4moe.nextn_predict_layers", 4);
  EXPECT_NE(error_of(all).find("is 4, expected less than block_count, 4"), std::string::npos)
      << error_of(all);
}

TEST_F(GgufFamilies, HaveAnMtpHeadOfOneLayerThatIsTheModelsOwn) {
  const auto write = [&](int layers, const std::vector<std::string>& names) {
    test::GgufWriter out = without(writer_of("qwen3_5_text"), "qwen35.block_count");
    out.u32("qwen35.block_count", static_cast<std::uint32_t>(4 + layers));
    out.u32("qwen35.nextn_predict_layers", static_cast<std::uint32_t>(layers));
    for (const std::string& name : names) {
      out.tensor(name, 0, {2, 2}, std::string(4 * sizeof(float), 0));
    }
    out.write(temp_.path() / "head.gguf");
    return std::make_unique<GgufModel>(temp_.path() / "head.gguf");
  };
  const auto head = write(1, {"blk.4.nextn.eh_proj.weight", "blk.4.attn_q.weight"});
  EXPECT_NE(head->find("mtp.fc.weight"), nullptr);
  EXPECT_NE(head->find("mtp.layers.0.self_attn.q_proj.weight"), nullptr);
  EXPECT_TRUE(head->warnings().empty());
  for (const auto& [layers, name] :
       {std::pair(1, "blk.4.nextn.shared_head_head.weight"), std::pair(2, "blk.5.attn_q.weight")}) {
    const auto other = write(layers, {"blk.4.nextn.eh_proj.weight", name});
    EXPECT_EQ(other->find("mtp.fc.weight"), nullptr);
    ASSERT_EQ(other->warnings().size(), 1u);
    EXPECT_NE(other->warnings()[0].find("layers from blk.4 on predict further tokens"),
              std::string::npos);
  }
}

TEST_F(GgufFamilies, RefuseWhatTheyDoNotCompute) {
  struct Case {
    const char* golden;
    const char* key;
    const char* expected;
    void (*put)(test::GgufWriter&, const std::string&);
  };
  const auto number = [](test::GgufWriter& out, const std::string& key) { out.f32(key, 0.5F); };
  const auto five = [](test::GgufWriter& out, const std::string& key) { out.u32(key, 5); };
  const auto no = [](test::GgufWriter& out, const std::string& key) { out.boolean(key, false); };
  const Case cases[] = {
      {"gemma2", "gemma2.attention.scale", "none", number},
      {"gemma2", "gemma2.rope.freq_base_swa", "none", number},
      {"qwen3", "qwen3.attention.sliding_window", "none", five},
      {"qwen3", "qwen3.expert_count", "none", five},
      {"qwen3_5_text", "qwen35.expert_count", "none", five},
      {"glm4", "glm4.rope.dimension_sections", "none", five},
      {"glm4", "glm4.rope.dimension_count", "2 to 32",
       [](test::GgufWriter& out, const std::string& key) { out.u32(key, 34); }},
      {"glm4_moe", "glm4moe.expert_gating_func", "2, sigmoids", five},
      {"hy_v3", "hy_v3.expert_weights_norm", "true", no},
      {"hy_v3", "hy_v3.expert_shared_feed_forward_length", "a multiple of", five},
      {"minimax_m2", "minimax-m2.expert_weights_scale", "none", number},
      {"gpt_oss", "gpt-oss.expert_gating_func", "3, a softmax", five},
      {"gpt_oss", "gpt-oss.swiglu_clamp_exp", "none", number},
      {"granite", "granite.rope.scaling.finetuned", "true", no},
      {"granitemoe", "granitemoe.expert_shared_feed_forward_length", "none", five},
      {"mixtral", "llama.expert_weights_norm", "true", no},
      {"phi3", "phi3.rope.scaling.attn_factor", "none", number},
      {"qwen3_next", "qwen3next.ssm.inner_size", "a multiple of", five},
      {"lfm2", "lfm2.attention.sliding_window", "none", five},
      {"llama4_text", "llama4.attention.sliding_window", "8192 or none", five},
      {"llama4_text", "llama4.attention.temperature_scale", "none", number},
      {"llama4_text", "llama4.interleave_moe_layer_step", "1 or more",
       [](test::GgufWriter& out, const std::string& key) { out.u32(key, 0); }},
      {"granitemoehybrid", "granitehybrid.ssm.inner_size", "a multiple of ssm.time_step_rank",
       five},
      {"nemotron_h_moe", "nemotron_h_moe.moe_latent_size", "none", five},
      {"nemotron_h_moe", "nemotron_h_moe.expert_shared_count", "1 (others", five},
      {"nemotron_h_moe", "nemotron_h_moe.expert_gating_func", "2, sigmoids", five},
      {"lfm2", "lfm2.attention.head_count_kv", "the same for all layers",
       [](test::GgufWriter& out, const std::string& key) {
         out.i32s(key, {2, 1, 0});
       }},
      {"lfm2_moe", "lfm2moe.expert_gating_func", "2, sigmoids", five}};
  for (const Case& one : cases) {
    test::GgufWriter writer = without(writer_of(one.golden), one.key);
    one.put(writer, one.key);
    const std::string error = error_of(writer);
    EXPECT_NE(error.find("key " + in_quotes(one.key)), std::string::npos) << one.key << error;
    EXPECT_NE(error.find("expected " + std::string(one.expected)), std::string::npos) << error;
  }
}

TEST_F(GgufFamilies, NameWhatTheyLack) {
  for (const auto& [golden, key] :
       {std::pair{"qwen3_5_text", "qwen35.ssm.group_count"},
        {"qwen3_5_moe_text", "qwen35moe.expert_shared_feed_forward_length"},
        {"gemma2", "gemma2.final_logit_softcapping"},
        {"granite", "granite.logit_scale"},
        {"gpt_oss", "gpt-oss.attention.sliding_window"},
        {"mixtral", "llama.expert_used_count"},
        {"lfm2", "lfm2.shortconv.l_cache"},
        {"llama4_text", "llama4.interleave_moe_layer_step"},
        {"granitemoehybrid", "granitehybrid.ssm.state_size"},
        {"nemotron_h", "nemotron_h.ssm.group_count"},
        {"nemotron_h_moe", "nemotron_h_moe.expert_used_count"},
        {"glm4_moe", "glm4moe.expert_shared_count"},
        {"ministral3", "mistral3.rope.scaling.original_context_length"}}) {
    const std::string error = error_of(without(writer_of(golden), key));
    EXPECT_NE(error.find("key " + in_quotes(key) + " is missing"), std::string::npos) << error;
  }
  const test::GgufWriter file = without(writer_of("qwen3_5_text"), "blk.1.ssm_conv1d.weight");
  const fs::path path = temp_.path() / "lacks.gguf";
  file.write(path);
  try {
    (void)Engine::load(path.string(), test::gguf_options("f32"));
    FAIL() << "loaded";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("\"model.layers.1.linear_attn.conv1d.weight\""),
              std::string::npos)
        << error.what();
  }
}

/// A tensor that a family has no name for would be one that it does not compute with.
TEST_F(GgufFamilies, HaveNoOtherTensors) {
  for (const auto& [golden, name] : {std::pair{"gemma2", "blk.0.attn_q_norm.weight"},
                                     {"qwen3", "blk.0.ffn_gate_exps.weight"},
                                     {"qwen3", "blk.0.attn_sinks.weight"},
                                     {"glm4", "blk.0.attn_output.bias"},
                                     {"phi3", "blk.0.attn_q.weight"},
                                     {"llama4_text", "blk.0.attn_q_norm.weight"},
                                     {"olmo2", "blk.0.attn_norm.weight"},
                                     {"qwen3", "rope_factors_long.weight"}}) {
    test::GgufWriter writer = writer_of(golden);
    writer.tensor(name, 0, {1}, "0123");
    const std::string error = error_of(writer);
    EXPECT_NE(error.find("tensor " + in_quotes(name) + " is none that a model of"),
              std::string::npos)
        << error;
  }
}

}  // namespace
}  // namespace dendrite
