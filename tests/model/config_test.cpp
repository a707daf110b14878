#include "model/config_reader.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "../io/test_files.h"
#include "io/model_folder.h"
#include "model/weights.h"

namespace dendrite {
namespace {

using Json = nlohmann::json;

DecoderConfig parse(const Json& config) {
  return parse_config(config.dump(), std::nullopt, "folder");
}

/// A small config with keys added or replaced; a discarded value ("<remove>") takes a key away.
DecoderConfig parse_with(const char* model_type, const Json& changes) {
  Json config = {{"model_type", model_type}, {"hidden_size", 256},     {"num_attention_heads", 8},
                 {"num_key_value_heads", 2}, {"num_hidden_layers", 4}, {"vocab_size", 512}};
  config.update(changes);
  return parse(config);
}

/// The message for a llama with these changes.
testing::AssertionResult refuses(const Json& changes, const std::string& part,
                                 const char* model_type = "llama") {
  return test::throws([&] { parse_with(model_type, changes); }, part);
}

// --- what is read

TEST(Config, MissingKeysMeanWhatTransformersTakesThemToMean) {
  const DecoderConfig llama = parse({{"model_type", "llama"}});
  EXPECT_EQ(llama.dim, 4096);
  EXPECT_EQ(llama.ffn_dim, 11008);
  EXPECT_EQ(llama.layers, 32);
  EXPECT_EQ(llama.heads, 32);
  EXPECT_EQ(llama.kv_heads, 32);
  EXPECT_EQ(llama.head_dim, 128);
  EXPECT_EQ(llama.rotary_dim, 128);
  EXPECT_EQ(llama.vocab, 32000);
  EXPECT_EQ(llama.norm_eps, 1e-6f);
  EXPECT_EQ(llama.max_positions, 2048);
  EXPECT_FALSE(llama.max_positions_hard);
  EXPECT_FALSE(llama.tie_embeddings);
  EXPECT_FALSE(llama.attention_bias || llama.attention_out_bias || llama.mlp_bias || llama.qk_norm);
  EXPECT_EQ(llama.windows, std::vector<std::int64_t>(32, 0));
  EXPECT_EQ(llama.rope.type, RopeType::kDefault);
  EXPECT_EQ(llama.rope.theta, 10000.0);
  EXPECT_EQ(llama.bos, 1);
  EXPECT_EQ(llama.eos, std::vector<std::int64_t>{2});
  EXPECT_EQ(llama.stored_dtype, std::nullopt);

  const DecoderConfig mistral = parse({{"model_type", "mistral"}});
  EXPECT_EQ(mistral.ffn_dim, 14336);
  EXPECT_EQ(mistral.kv_heads, 8);
  EXPECT_EQ(mistral.max_positions, 131072);
  EXPECT_EQ(mistral.windows, std::vector<std::int64_t>(32, 4096));
  EXPECT_EQ(mistral.eos, std::vector<std::int64_t>{2});

  const DecoderConfig qwen2 = parse({{"model_type", "qwen2"}});
  EXPECT_EQ(qwen2.vocab, 151936);
  EXPECT_EQ(qwen2.ffn_dim, 22016);
  EXPECT_EQ(qwen2.kv_heads, 32);
  EXPECT_EQ(qwen2.head_dim, 128);
  EXPECT_EQ(qwen2.max_positions, 32768);
  EXPECT_TRUE(qwen2.attention_bias);
  EXPECT_FALSE(qwen2.attention_out_bias);
  EXPECT_EQ(qwen2.windows, std::vector<std::int64_t>(32, 0));
  EXPECT_EQ(qwen2.bos, std::nullopt);
  EXPECT_TRUE(qwen2.eos.empty());

  const DecoderConfig qwen3 = parse({{"model_type", "qwen3"},
                                     {"hidden_size", 1024},
                                     {"num_attention_heads", 16},
                                     {"num_key_value_heads", 8}});
  EXPECT_EQ(qwen3.head_dim, 128);  // not 1024 / 16
  EXPECT_TRUE(qwen3.qk_norm);
  EXPECT_FALSE(qwen3.attention_bias);
}

TEST(Config, NullIsNotTheSameAsMissing) {
  EXPECT_EQ(parse_with("mistral", {{"num_key_value_heads", nullptr}, {"num_attention_heads", 16}})
                .kv_heads,
            16);
  EXPECT_EQ(parse_with("mistral", {{"sliding_window", nullptr}}).windows,
            std::vector<std::int64_t>(4, 0));
  EXPECT_EQ(parse_with("llama", {{"head_dim", nullptr}}).head_dim, 32);
  EXPECT_TRUE(parse_with("llama", {{"eos_token_id", nullptr}}).eos.empty());
  EXPECT_EQ(parse_with("llama", {{"bos_token_id", nullptr}}).bos, std::nullopt);
  EXPECT_TRUE(refuses({{"hidden_size", nullptr}}, "\"hidden_size\" is null, expected an integer"));
  EXPECT_TRUE(refuses({{"head_dim", nullptr}}, "\"head_dim\" is null", "qwen3"));
}

TEST(Config, BiasesAreThoseOfTheFamily) {
  const Json biases = {{"attention_bias", true}, {"mlp_bias", true}};
  const DecoderConfig llama = parse_with("llama", biases);
  EXPECT_TRUE(llama.attention_bias && llama.attention_out_bias && llama.mlp_bias);
  const DecoderConfig attention = parse_with("llama", {{"attention_bias", true}});
  EXPECT_TRUE(attention.attention_bias && attention.attention_out_bias && !attention.mlp_bias);
  const DecoderConfig mistral = parse_with("mistral", biases);
  EXPECT_FALSE(mistral.attention_bias || mistral.attention_out_bias || mistral.mlp_bias);
  const DecoderConfig qwen2 = parse_with("qwen2", biases);
  EXPECT_TRUE(qwen2.attention_bias && !qwen2.attention_out_bias && !qwen2.mlp_bias);
  const DecoderConfig qwen3 = parse_with("qwen3", biases);
  EXPECT_TRUE(qwen3.attention_bias && qwen3.attention_out_bias && !qwen3.mlp_bias);
}

TEST(Config, LayersOfAQwenSlideAsTheFileSays) {
  using Windows = std::vector<std::int64_t>;
  const Json sliding = {{"use_sliding_window", true}, {"sliding_window", 16}};
  const auto windows = [&](const Json& more) {
    Json changes = sliding;
    changes.update(more);
    EXPECT_EQ(parse_with("qwen2", changes).windows, parse_with("qwen3", changes).windows);
    return parse_with("qwen2", changes).windows;
  };
  EXPECT_EQ(windows({{"max_window_layers", 1}}), (Windows{0, 16, 16, 16}));
  EXPECT_EQ(windows(Json::object()), (Windows{0, 0, 0, 0}));  // from layer 28 on
  EXPECT_EQ(windows({{"max_window_layers", 0}, {"use_sliding_window", false}}),
            (Windows{0, 0, 0, 0}));
  EXPECT_EQ(windows({{"max_window_layers", 0}, {"sliding_window", nullptr}}),
            (Windows{0, 0, 0, 0}));
  EXPECT_EQ(windows({{"max_window_layers", 0},
                     {"layer_types",
                      {"attention", "sliding_attention", "full_attention", "sliding_attention"}}}),
            (Windows{0, 16, 0, 16}));
}

TEST(Config, RopeIsReadInBothSpellings) {
  const Json llama3 = {{"rope_type", "llama3"},
                       {"factor", 32.0},
                       {"low_freq_factor", 1},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 8192}};
  Json nested = llama3;
  nested["rope_theta"] = 5e5;
  for (const Json& changes :
       {Json{{"rope_parameters", nested}}, Json{{"rope_scaling", llama3}, {"rope_theta", 5e5}}}) {
    const RopeConfig rope = parse_with("llama", changes).rope;
    EXPECT_EQ(rope.type, RopeType::kLlama3);
    EXPECT_EQ(rope.theta, 5e5);
    EXPECT_EQ(rope.factor, 32.0);
    EXPECT_EQ(rope.original_positions, 8192);
  }
  // "type" is the older name; the nested theta wins; an empty rope_scaling does not count.
  const RopeConfig rope =
      parse_with("llama",
                 {{"rope_scaling", Json::object()},
                  {"rope_theta", 7.0},
                  {"rope_parameters", {{"type", "linear"}, {"factor", 2}, {"rope_theta", 9.0}}}})
          .rope;
  EXPECT_EQ(rope.type, RopeType::kLinear);
  EXPECT_EQ(rope.theta, 9.0);
  // rope_scaling wins over rope_parameters as a whole
  EXPECT_EQ(parse_with("llama", {{"rope_scaling", {{"type", "linear"}, {"factor", 2}}},
                                 {"rope_parameters", {{"rope_theta", 9.0}}}})
                .rope.theta,
            10000.0);
}

TEST(Config, RopeDefaultsAreThoseOfItsType) {
  const DecoderConfig dynamic = parse_with(
      "llama",
      {{"rope_scaling", {{"type", "dynamic"}, {"factor", 2.0}}}, {"max_position_embeddings", 64}});
  EXPECT_TRUE(dynamic.max_positions_hard);
  EXPECT_EQ(dynamic.rope.position_limit(), 64);
  const auto yarn = [](Json changes) {
    changes.update({{"type", "yarn"}});
    return parse_with("llama", {{"rope_scaling", changes}, {"max_position_embeddings", 4096}}).rope;
  };
  EXPECT_EQ(yarn({{"factor", 2.0}}).original_positions, 4096);
  EXPECT_EQ(yarn({{"factor", nullptr}, {"original_max_position_embeddings", 1024}}).factor, 4.0);
  EXPECT_EQ(yarn({{"factor", 2.0}, {"beta_fast", nullptr}, {"beta_slow", 0}}).beta_fast, 32.0);
  EXPECT_EQ(yarn({{"factor", 2.0}, {"beta_fast", nullptr}, {"beta_slow", 0}}).beta_slow, 1.0);
  EXPECT_EQ(yarn({{"factor", 2.0}, {"attention_factor", 0.0}}).attention_factor, 0.0);
  // written beside the object, it counts
  const Json beside = {
      {"original_max_position_embeddings", 256},
      {"rope_scaling",
       {{"type", "yarn"}, {"factor", 2.0}, {"original_max_position_embeddings", 512}}}};
  EXPECT_EQ(parse_with("llama", beside).rope.original_positions, 256);
}

TEST(Config, StoredTypeIsReadInBothSpellings) {
  EXPECT_EQ(parse_with("llama", {{"torch_dtype", "bfloat16"}}).stored_dtype, DType::kBF16);
  EXPECT_EQ(parse_with("llama", {{"dtype", "float16"}, {"torch_dtype", "bfloat16"}}).stored_dtype,
            DType::kF16);
  EXPECT_EQ(parse_with("llama", {{"dtype", nullptr}, {"torch_dtype", "float32"}}).stored_dtype,
            DType::kF32);
  EXPECT_EQ(parse_with("llama", {{"dtype", "float64"}}).stored_dtype, std::nullopt);
}

TEST(Config, HarmlessKeysAreIgnored) {
  parse_with("llama", {{"pretraining_tp", 2},
                       {"sliding_window", 16},
                       {"architectures", {"LLaMAForCausalLM"}},
                       {"hidden_act", "swish"},
                       {"quantization_config", nullptr},
                       {"rope_scaling", nullptr},
                       {"partial_rotary_factor", 1.0},
                       {"is_encoder_decoder", false},
                       {"unknown", {{"a", 1}}}});
  parse_with("mistral", {{"layer_types", Json(4, "sliding_attention")}});
  parse_with("llama", {{"layer_types", Json(4, "full_attention")}});
}

// --- what is refused

TEST(RefusedConfig, NamesWhatIsNotSupported) {
  EXPECT_TRUE(
      refuses({{"model_type", "gpt2"}},
              "config.json: key \"model_type\" is \"gpt2\", expected one of llama, mistral"));
  EXPECT_ERROR(parse(Json::object()), "key \"model_type\" is missing, expected one of llama");
  EXPECT_TRUE(refuses({{"architectures", {"LlamaForSequenceClassification"}}},
                      "\"LlamaForSequenceClassification\" is not supported"));
  EXPECT_TRUE(refuses({{"hidden_act", "gelu"}}, "\"hidden_act\" is \"gelu\", expected \"silu\""));
  EXPECT_TRUE(refuses({{"quantization_config", {{"quant_method", "bitsandbytes"}}}},
                      "key \"quantization_config.quant_method\" is \"bitsandbytes\", expected one "
                      "of fp8, fbgemm_fp8, compressed-tensors, modelopt, mxfp4, awq, gptq"));
  EXPECT_TRUE(
      refuses({{"partial_rotary_factor", 0.5}}, "RoPE over a part of the head is not supported"));
  EXPECT_TRUE(refuses({{"rope_parameters", {{"partial_rotary_factor", 0.5}}}},
                      "\"rope_parameters.partial_rotary"));
  EXPECT_TRUE(refuses({{"per_layer_config", {{"0", Json::object()}}}},
                      "layers that differ are not supported"));
  EXPECT_TRUE(refuses({{"is_encoder_decoder", true}}, "only decoders are supported"));
  for (const char* type : {"longrope", "su", "mrope", "Proportional", "Yarn"}) {
    for (const char* key : {"type", "rope_type"}) {
      EXPECT_TRUE(refuses({{"rope_scaling", {{key, type}, {"factor", 2.0}}}},
                          "is \"" + std::string(type) + "\", expected \"default\", \"linear\""));
    }
  }
  EXPECT_TRUE(refuses({{"rope_parameters", {{"full_attention", {{"rope_theta", 1e4}}}}}},
                      "a RoPE table per layer kind is not supported"));
}

TEST(RefusedConfig, LayerKindsMustMakeSense) {
  const auto layers = [](const char* kind, std::size_t count) {
    return Json{{"layer_types", Json(count, kind)}};
  };
  EXPECT_TRUE(
      refuses(layers("linear_attention", 4), "\"linear_attention\" is not supported", "qwen3"));
  EXPECT_TRUE(refuses(layers("chunked_attention", 4), "\"chunked_attention\" is not supported"));
  EXPECT_TRUE(refuses(layers("full_attention", 3), "expected one for each of num_hidden_layers, 4",
                      "qwen2"));
  EXPECT_TRUE(refuses(layers("sliding_attention", 4),
                      "no \"sliding_attention\", since use_sliding_window is off", "qwen2"));
  EXPECT_TRUE(refuses(layers("sliding_attention", 4), "a llama has no sliding window"));
  EXPECT_TRUE(refuses(layers("full_attention", 4), "only \"sliding_attention\"", "mistral"));
  EXPECT_TRUE(refuses({{"sliding_window", 0}},
                      "\"sliding_window\" is 0, expected an integer from 1", "mistral"));
}

TEST(RefusedConfig, SizesMustBePossible) {
  EXPECT_TRUE(
      refuses({{"hidden_size", 0}}, "\"hidden_size\" is 0, expected an integer from 1 to 65536"));
  EXPECT_TRUE(refuses({{"hidden_size", 65537}}, "is 65537"));
  EXPECT_TRUE(refuses({{"hidden_size", 256.0}}, "is 256.0, expected an integer"));
  EXPECT_TRUE(refuses({{"num_hidden_layers", 1025}}, "from 1 to 1024"));
  EXPECT_TRUE(refuses({{"num_hidden_layers", -1}}, "is -1"));
  EXPECT_TRUE(refuses({{"vocab_size", 4194305}}, "from 1 to 4194304"));
  EXPECT_TRUE(refuses({{"intermediate_size", 1e30}}, "\"intermediate_size\" is 1e+30"));
  EXPECT_TRUE(
      refuses({{"max_position_embeddings", std::int64_t{1} << 40}}, "\"max_position_embeddings\""));
  EXPECT_TRUE(
      refuses({{"num_key_value_heads", 3}}, "expected a divisor of num_attention_heads, 8"));
  EXPECT_TRUE(refuses({{"num_key_value_heads", 16}}, "expected a divisor"));
  EXPECT_ERROR(parse({{"model_type", "qwen2"}, {"hidden_size", 896}, {"num_attention_heads", 14}}),
               "\"num_key_value_heads\" is missing, expected a divisor of num_attention_heads, 14 "
               "(missing means 32)");
  EXPECT_TRUE(refuses({{"hidden_size", 250}},
                      "a multiple of num_attention_heads, 8, as there is no head_dim"));
  EXPECT_TRUE(refuses({{"hidden_size", 250}, {"head_dim", 32}},
                      "expected a multiple of num_attention_heads, 8"));
  EXPECT_EQ(parse_with("mistral", {{"hidden_size", 250}, {"head_dim", 32}}).head_dim, 32);
  EXPECT_TRUE(refuses({{"head_dim", 33}}, "expected an even number from 2 to 1024, got 33"));
  EXPECT_TRUE(refuses({{"hidden_size", 200}}, "\"head_dim\" is missing, expected an even number"));
  EXPECT_TRUE(refuses({{"rms_norm_eps", -1e-6}},
                      "\"rms_norm_eps\" is -1e-06, expected a number from 0 to 1"));
  EXPECT_TRUE(refuses({{"rms_norm_eps", "1e-6"}}, "is \"1e-6\", expected a number"));
  EXPECT_TRUE(refuses({{"tie_word_embeddings", 1}}, "is 1, expected true or false"));
}

TEST(RefusedConfig, RopeMustBePossible) {
  const auto rope = [](const Json& settings, const std::string& part) {
    return refuses({{"rope_scaling", settings}}, part);
  };
  EXPECT_TRUE(refuses({{"rope_theta", 0.0}}, "\"rope_theta\" is 0.0, expected a number from 1"));
  EXPECT_TRUE(refuses({{"rope_theta", nullptr}}, "\"rope_theta\" is null"));
  EXPECT_TRUE(rope({{"type", "linear"}}, "\"rope_scaling.factor\" is missing, expected a number"));
  EXPECT_TRUE(rope({{"type", "dynamic"}, {"factor", 0}}, "\"rope_scaling.factor\" is 0"));
  EXPECT_TRUE(rope({{"type", "yarn"}}, "\"rope_scaling.factor\" is missing"));
  EXPECT_TRUE(rope({{"type", "yarn"}, {"factor", 2}, {"rope_theta", 1}}, "a number above 1"));
  EXPECT_TRUE(rope({{"type", "yarn"}, {"factor", 2}, {"original_max_position_embeddings", 0}},
                   "is 0, expected"));
  EXPECT_TRUE(
      rope({{"type", "llama3"}, {"factor", 8}, {"low_freq_factor", 4}, {"high_freq_factor", 3}},
           "\"rope_scaling.high_freq_factor\" is 3, expected at least low_freq_factor"));
  EXPECT_TRUE(refuses({{"head_dim", 2}, {"rope_scaling", {{"type", "dynamic"}, {"factor", 2}}}},
                      "more than 2"));
  EXPECT_TRUE(rope({{"type", 3}}, "\"rope_scaling.type\" is 3, expected a string"));
  EXPECT_TRUE(rope("linear", "\"rope_scaling\" is \"linear\", expected an object"));
}

TEST(LoadConfig, ReadsTheFilesOfAFolder) {
  const test::TempFolder temp;
  const auto load = [&] {
    return load_config(ModelFolder::open(temp.path().string(), ModelFolder::Weights::kSkip));
  };
  EXPECT_ERROR(load(), (temp.path() / "config.json").string() + ": no such file");
  temp.write("config.json", R"({"model_type": "llama", "eos_token_id": 5})");
  EXPECT_EQ(load().eos, std::vector<std::int64_t>{5});
  temp.write("generation_config.json", R"({"eos_token_id": [6]})");
  EXPECT_EQ(load().eos, std::vector<std::int64_t>{6});
  temp.write("generation_config.json", "{");
  EXPECT_ERROR(load(), (temp.path() / "generation_config.json").string() + ": is not valid JSON");
  temp.write("generation_config.json", "");
  EXPECT_ERROR(load(), "generation_config.json: is empty");
  temp.write("generation_config.json", "{}");
  temp.write("hf_quant_config.json", R"({"quantization": {"quant_algo": "FP8"}})");
  EXPECT_FALSE(load().rounds_block_inputs);
  temp.write("hf_quant_config.json", R"({"quantization": {"quant_algo": "NVFP4"}})");
  EXPECT_TRUE(load().rounds_block_inputs);
  temp.write("hf_quant_config.json", R"({"quantization": {"quant_algo": "NVFP4_AWQ"}})");
  EXPECT_ERROR(load(), "hf_quant_config.json: key \"quantization.quant_algo\" is \"NVFP4_AWQ\"");
}

TEST(QuantisedConfig, IsTakenWhereTheTensorsTellTheRest) {
  const auto takes = [](const Json& settings) {
    parse_with("llama", {{"quantization_config", settings}});
  };
  takes({{"quant_method", "fp8"}, {"weight_block_size", {128, 128}}, {"fmt", "e4m3"}});
  takes({{"quant_method", "fp8"}, {"weight_block_size", nullptr}});
  takes({{"quant_method", "fbgemm_fp8"}, {"activation_scale_ub", 1200.0}});
  takes({{"quant_method", "awq"}, {"bits", 4}, {"group_size", 128}, {"version", "gemm"}});
  takes({{"quant_method", "gptq"}, {"bits", 4}, {"desc_act", true}, {"checkpoint_format", "gptq"}});
  for (const char* algorithm : {"FP8", "MXFP8", "NVFP4", "W4A16_NVFP4"}) {
    takes({{"quant_method", "modelopt"}, {"quant_algo", algorithm}});
  }
  const auto mixed = [](const char* algorithm) {
    return Json{
        {"quant_method", "modelopt"},
        {"quant_algo", "MIXED_PRECISION"},
        {"quantized_layers",
         {{"a.q_proj", {{"quant_algo", "FP8"}}}, {"b.o_proj", {{"quant_algo", algorithm}}}}}};
  };
  takes(mixed("NVFP4"));
  const auto group = [](const char* type, int bits) {
    return Json{{"group_0", {{"weights", {{"type", type}, {"num_bits", bits}}}}}};
  };
  const auto compressed = [&](const char* format, const char* type, int bits) {
    return Json{{"quant_method", "compressed-tensors"},
                {"format", format},
                {"config_groups", group(type, bits)}};
  };
  takes(compressed("float-quantized", "float", 8));
  takes(compressed("int-quantized", "int", 8));
  takes(compressed("pack-quantized", "int", 4));
  takes(compressed("nvfp4-pack-quantized", "float", 4));
  takes(compressed("mxfp4-pack-quantized", "float", 4));
  takes(compressed("mxfp8-quantized", "float", 8));
  EXPECT_TRUE(
      parse_with("llama", {{"quantization_config", compressed("float-quantized", "float", 8)}})
          .keeps_fp8_inputs);
  Json rounding = compressed("float-quantized", "float", 8);
  rounding["config_groups"]["group_0"]["input_activations"] = {{"num_bits", 8}, {"type", "float"}};
  EXPECT_FALSE(parse_with("llama", {{"quantization_config", rounding}}).keeps_fp8_inputs);
  EXPECT_FALSE(parse_with("llama", {{"quantization_config", compressed("int-quantized", "int", 8)}})
                   .keeps_fp8_inputs);
  const auto rounds_blocks = [](const Json& settings) {
    return parse_with("llama", {{"quantization_config", settings}}).rounds_block_inputs;
  };
  Json blocks = compressed("nvfp4-pack-quantized", "float", 4);
  EXPECT_FALSE(rounds_blocks(blocks));
  Json& block_group = blocks["config_groups"]["group_0"];
  block_group["weights"]["group_size"] = 16;
  EXPECT_FALSE(rounds_blocks(blocks)) << "weights alone";
  block_group["input_activations"] = {{"num_bits", 8}, {"type", "float"}};
  EXPECT_FALSE(rounds_blocks(blocks)) << "to something else";
  block_group["input_activations"] = {{"num_bits", 4}, {"type", "float"}, {"group_size", 16}};
  EXPECT_TRUE(rounds_blocks(blocks));
  const auto modelopt = [](const char* algorithm) {
    return Json{{"quant_method", "modelopt"}, {"quant_algo", algorithm}};
  };
  EXPECT_TRUE(rounds_blocks(modelopt("NVFP4")));
  EXPECT_TRUE(rounds_blocks(modelopt("MXFP8")));
  EXPECT_FALSE(rounds_blocks(modelopt("W4A16_NVFP4")));
  EXPECT_FALSE(rounds_blocks(modelopt("FP8")));
  EXPECT_TRUE(rounds_blocks(mixed("NVFP4")));
  EXPECT_FALSE(rounds_blocks(mixed("W4A16_NVFP4")));
  Json groups = compressed("mixed-precision", "float", 8);
  groups["config_groups"]["group_0"]["format"] = "float-quantized";
  takes(groups);
  const auto refused = [](const Json& settings, const std::string& key) {
    return refuses({{"quantization_config", settings}}, "\"quantization_config." + key + "\"");
  };
  EXPECT_TRUE(
      refused({{"quant_method", "fp8"}, {"weight_block_size", {64, 64}}}, "weight_block_size"));
  EXPECT_TRUE(refused({{"quant_method", "fp8"}, {"fmt", "e5m2"}}, "fmt"));
  EXPECT_TRUE(refused({{"quant_method", "awq"}, {"bits", 8}}, "bits"));
  EXPECT_TRUE(refused({{"quant_method", "awq"}, {"version", "gemv"}}, "version"));
  EXPECT_TRUE(refused({{"quant_method", "gptq"}, {"bits", 3}}, "bits"));
  EXPECT_TRUE(
      refused({{"quant_method", "gptq"}, {"checkpoint_format", "gptq_v2"}}, "checkpoint_format"));
  EXPECT_TRUE(refused(mixed("W4A16_AWQ"), "quantized_layers.b.o_proj.quant_algo"));
  EXPECT_TRUE(
      refused({{"quant_method", "modelopt"}, {"quant_algo", "MIXED_PRECISION"}}, "quant_algo"));
  EXPECT_TRUE(refused(compressed("marlin-24", "int", 4), "format"));
  EXPECT_TRUE(refused(compressed("mixed-precision", "float", 8), "config_groups.group_0.format"));
  EXPECT_TRUE(refused(compressed("nvfp4-pack-quantized", "float", 8),
                      "config_groups.group_0.weights.num_bits"));
  EXPECT_TRUE(
      refused(compressed("mxfp4-pack-quantized", "int", 4), "config_groups.group_0.weights.type"));
  EXPECT_TRUE(
      refused(compressed("pack-quantized", "int", 8), "config_groups.group_0.weights.num_bits"));
  EXPECT_TRUE(
      refused(compressed("float-quantized", "int", 8), "config_groups.group_0.weights.type"));
  Json transformed = compressed("float-quantized", "float", 8);
  transformed["transform_config"] = {{"config_groups", {{"a", 1}}}};
  EXPECT_TRUE(refused(transformed, "transform_config"));
  EXPECT_TRUE(refused({{"bits", 4}}, "quant_method"));
}

TEST(LoadConfig, ReadsEveryFixture) {
  const auto models = test::data_folder() / "models";
  if (!std::filesystem::exists(models)) GTEST_SKIP() << models << " is missing";
  int read = 0;
  for (const auto& folder : std::filesystem::directory_iterator(models)) {
    if (!std::filesystem::exists(folder.path() / "config.json")) continue;
    const ModelFolder model = ModelFolder::open(folder.path().string());
    const DecoderConfig config = load_config(model);
    const std::string prefix = tensor_prefix(model);
    model.require(prefix + config.embedding + ".weight", {config.vocab, config.dim});
    std::int64_t layer = 0;
    while (!config.has_attention(layer)) ++layer;
    const std::string own =
        prefix + "layers." + std::to_string(layer) + "." + config.attention_names.block;
    const std::int64_t kv = config.kv_heads * config.head_dim;
    if (config.latent) {
      model.require(own + "kv_a_proj_with_mqa.weight", {kv, config.dim});
    } else if (config.fused_qkv) {
      model.require(own + "qkv_proj.weight", {config.heads * config.head_dim + 2 * kv, config.dim});
    } else {
      model.require(own + "k_proj.weight", {kv, config.dim});
    }
    ++read;
  }
  EXPECT_GT(read, 10);
}

}  // namespace
}  // namespace dendrite
