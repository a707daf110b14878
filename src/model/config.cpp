#include "model/config.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <span>
#include <utility>

#include "dendrite/error.h"
#include "io/checkpoint.h"
#include "io/json_file.h"
#include "model/config_experts.h"
#include "model/config_hybrid.h"
#include "model/config_quantization.h"
#include "model/config_rope.h"

namespace dendrite {
namespace {

// Beyond these a file is taken to be broken; each leaves room over the largest model known.
constexpr IntRange kDimRange{1, 65536};
constexpr IntRange kFfnRange{1, 1 << 20};
constexpr IntRange kLayerRange{1, 1024};
constexpr IntRange kHeadRange{1, 4096};
constexpr IntRange kHeadDimRange{2, 1024};
constexpr IntRange kVocabRange{1, 4 << 20};
constexpr IntRange kPositionRange{1, std::int64_t{1} << 30};
constexpr JsonLimits kLimits{};

/// What missing keys mean, and what sets a family apart. The defaults are those of the config
/// classes of transformers 5.23.
struct Family {
  const char* model_type;
  std::vector<std::string> architectures;
  std::int64_t vocab;
  std::int64_t ffn_dim;
  std::int64_t max_positions;
  std::optional<std::int64_t> kv_heads{};  // nullopt: as many as heads
  std::optional<std::int64_t> head_dim{};  // nullopt: dim / heads
  std::optional<std::int64_t> bos{};
  std::vector<std::int64_t> eos{};
  /// Reads what only this family has: biases, norms, windows.
  void (*apply)(const JsonObject& json, DecoderConfig& config);
  /// Of text and more: the model's own config is "text_config" of the file's.
  bool nested = false;
  std::int64_t dim = 4096;
  std::int64_t layers = 32;
  std::int64_t heads = 32;
  double norm_eps = 1e-6;
  double rope_theta = 10000;
};

// --- sliding windows

/// "layer_types" with the old name of full attention replaced, nullopt when missing. Any kind but
/// full and sliding attention is refused.
std::optional<std::vector<std::string>> read_layer_types(const JsonObject& json,
                                                         std::int64_t layers) {
  auto types = json.find_strings("layer_types");
  if (!types) return types;
  if (static_cast<std::int64_t>(types->size()) != layers) {
    json.fail("layer_types", "one for each of num_hidden_layers, " + std::to_string(layers));
  }
  for (std::string& type : *types) {
    if (type == "attention") type = "full_attention";
    if (type != "full_attention" && type != "sliding_attention") {
      json.fail("layer_types", "\"full_attention\" or \"sliding_attention\" in each place (" +
                                   in_quotes(type) + " is not supported)");
    }
  }
  return types;
}

/// "sliding_window": 4096 when missing, 0 (full attention) when null.
std::int64_t read_window(const JsonObject& json) {
  if (!json.contains("sliding_window")) return 4096;
  return json.find_int("sliding_window", kPositionRange).value_or(0);
}

// --- the families

void apply_llama(const JsonObject& json, DecoderConfig& config) {
  config.attention_bias = config.attention_out_bias = json.bool_or("attention_bias", false);
  config.mlp_bias = json.bool_or("mlp_bias", false);
  if (config.dim % config.heads != 0) {
    json.fail("hidden_size", "a multiple of num_attention_heads, " + std::to_string(config.heads));
  }
  const auto types = read_layer_types(json, config.layers);
  if (types && std::ranges::count(*types, "full_attention") != config.layers) {
    json.fail("layer_types", "only \"full_attention\" (a llama has no sliding window)");
  }
}

/// All layers have one window; 0: full attention.
void set_window(const JsonObject& json, std::int64_t window, DecoderConfig& config) {
  config.windows.assign(static_cast<std::size_t>(config.layers), window);
  const auto types = read_layer_types(json, config.layers);
  const char* const kind = window == 0 ? "full_attention" : "sliding_attention";
  if (types && std::ranges::count(*types, kind) != config.layers) {
    json.fail("layer_types", "only \"" + std::string(kind) +
                                 "\", as sliding_window says for all layers of a " +
                                 config.model_type);
  }
}

void apply_mistral(const JsonObject& json, DecoderConfig& config) {
  set_window(json, read_window(json), config);
}

void apply_mixtral(const JsonObject& json, DecoderConfig& config) {
  set_window(json, json.find_int("sliding_window", kPositionRange).value_or(0), config);
  read_mixtral_experts(json, config);
}

/// Which layers of a Qwen slide: those that "layer_types" says, else all from "max_window_layers"
/// on.
void apply_qwen_windows(const JsonObject& json, DecoderConfig& config) {
  const bool sliding = json.bool_or("use_sliding_window", false);
  const std::int64_t window = sliding ? read_window(json) : 0;
  const auto types = read_layer_types(json, config.layers);
  const std::int64_t first = types ? 0 : json.int_or("max_window_layers", 28, {0, 1 << 20});
  for (std::int64_t i = 0; i < config.layers; ++i) {
    const auto layer = static_cast<std::size_t>(i);
    const bool slides = types ? (*types)[layer] == "sliding_attention" : i >= first;
    if (types && slides && window == 0) {
      json.fail("layer_types",
                "no \"sliding_attention\", since use_sliding_window is off or sliding_window null");
    }
    config.windows[layer] = slides ? window : 0;
  }
}

void apply_qwen2(const JsonObject& json, DecoderConfig& config) {
  config.attention_bias = true;  // always, and never on the output
  apply_qwen_windows(json, config);
}

void apply_qwen3(const JsonObject& json, DecoderConfig& config) {
  config.attention_bias = config.attention_out_bias = json.bool_or("attention_bias", false);
  config.qk_norm = true;
  apply_qwen_windows(json, config);
}

void apply_qwen3_moe(const JsonObject& json, DecoderConfig& config) {
  config.attention_bias = config.attention_out_bias = json.bool_or("attention_bias", false);
  config.qk_norm = true;
  set_window(json, json.bool_or("use_sliding_window", false) ? read_window(json) : 0, config);
  read_qwen3_experts(json, config);
}

/// Qwen3.5's mixtures: `nested` with more than text.
Family mixed_hybrid(const char* model_type, std::vector<std::string> architectures, bool nested) {
  return {.model_type = model_type,
          .architectures = std::move(architectures),
          .vocab = 248320,
          .ffn_dim = 512,
          .max_positions = 32768,
          .kv_heads = 2,
          .head_dim = 256,
          .apply = read_mixed_hybrid,
          .nested = nested,
          .dim = 2048,
          .layers = 40,
          .heads = 16};
}

/// To support another family: a row here, and a function above for what sets it apart.
std::span<const Family> families() {
  const std::string text = "Qwen3_5ForCausalLM";
  const std::string whole = "Qwen3_5ForConditionalGeneration";
  const std::string mixed_text = "Qwen3_5MoeForCausalLM";
  const std::string mixed_whole = "Qwen3_5MoeForConditionalGeneration";
  static const Family kFamilies[] = {
      {"llama", {"LlamaForCausalLM"}, 32000, 11008, 2048, {}, {}, 1, {2}, apply_llama},
      {"mistral", {"MistralForCausalLM"}, 32000, 14336, 131072, 8, {}, 1, {2}, apply_mistral},
      {"qwen2", {"Qwen2ForCausalLM"}, 151936, 22016, 32768, 32, {}, {}, {}, apply_qwen2},
      {"qwen3", {"Qwen3ForCausalLM"}, 151936, 22016, 32768, 32, 128, {}, {}, apply_qwen3},
      {"qwen3_5", {whole, text}, 248320, 12288, 32768, 4, 256, {}, {}, read_hybrid, true},
      {"qwen3_5_text", {text, whole}, 248320, 12288, 32768, 4, 256, {}, {}, read_hybrid},
      {.model_type = "mixtral",
       .architectures = {"MixtralForCausalLM"},
       .vocab = 32000,
       .ffn_dim = 14336,
       .max_positions = 131072,
       .kv_heads = 8,
       .bos = 1,
       .eos = {2},
       .apply = apply_mixtral,
       .norm_eps = 1e-5,
       .rope_theta = 1e6},
      {.model_type = "qwen3_moe",
       .architectures = {"Qwen3MoeForCausalLM"},
       .vocab = 151936,
       .ffn_dim = 6144,
       .max_positions = 32768,
       .kv_heads = 4,
       .apply = apply_qwen3_moe,
       .dim = 2048,
       .layers = 24},
      {.model_type = "qwen3_next",
       .architectures = {"Qwen3NextForCausalLM"},
       .vocab = 151936,
       .ffn_dim = 5632,
       .max_positions = 32768,
       .kv_heads = 2,
       .head_dim = 256,
       .apply = read_next,
       .dim = 2048,
       .layers = 48,
       .heads = 16},
      mixed_hybrid("qwen3_5_moe", {mixed_whole, mixed_text}, true),
      mixed_hybrid("qwen3_5_moe_text", {mixed_text, mixed_whole}, false),
  };
  return kFamilies;
}

// --- what all families share

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::ranges::equal(
      a, b, [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

const Family& read_family(const JsonObject& json) {
  const std::string type = json.find_string("model_type").value_or("");
  const auto family = std::ranges::find(families(), type, &Family::model_type);
  if (family == families().end()) {
    json.fail("model_type", "one of " + supported_model_types() + " (others are not supported)");
  }
  const auto names = json.find_strings("architectures");
  const auto is_known = [&](const std::string& name) {
    return std::ranges::any_of(family->architectures, [&](const std::string& known) {
      return equal_ignoring_case(name, known);  // LLaMAForCausalLM in old files
    });
  };
  if (names && !names->empty() && std::ranges::none_of(*names, is_known)) {
    json.fail("architectures", "[\"" + family->architectures.front() + "\"] for model_type \"" +
                                   type + "\" (" + in_quotes(names->front()) +
                                   " is not supported)");
  }
  return *family;
}

/// Settings that change what is computed and that we do not compute.
void refuse_unsupported(const JsonObject& json) {
  check_quantization(json);
  if (json.has("per_layer_config"))
    json.fail("per_layer_config", "none (layers that differ are not supported)");
  if (json.find_bool("is_encoder_decoder").value_or(false)) {
    json.fail("is_encoder_decoder", "false (only decoders are supported)");
  }
  if (json.contains("hidden_act")) {
    const std::string act = json.require_string("hidden_act");
    if (act != "silu" && act != "swish")
      json.fail("hidden_act", "\"silu\" (other activations are not supported)");
  }
}

void read_sizes(const JsonObject& json, const Family& family, DecoderConfig& config) {
  config.dim = json.int_or("hidden_size", family.dim, kDimRange);
  config.ffn_dim = json.int_or("intermediate_size", family.ffn_dim, kFfnRange);
  config.layers = json.int_or("num_hidden_layers", family.layers, kLayerRange);
  config.heads = json.int_or("num_attention_heads", family.heads, kHeadRange);
  config.vocab = json.int_or("vocab_size", family.vocab, kVocabRange);
  config.max_positions =
      json.int_or("max_position_embeddings", family.max_positions, kPositionRange);

  const std::int64_t default_kv_heads =
      json.contains("num_key_value_heads") ? config.heads : family.kv_heads.value_or(config.heads);
  config.kv_heads = json.find_int("num_key_value_heads", kHeadRange).value_or(default_kv_heads);
  if (config.kv_heads > config.heads || config.heads % config.kv_heads != 0) {
    json.fail("num_key_value_heads",
              "a divisor of num_attention_heads, " + std::to_string(config.heads) +
                  (json.has("num_key_value_heads")
                       ? ""
                       : " (missing means " + std::to_string(config.kv_heads) + ")"));
  }

  if (json.has("head_dim") || family.head_dim) {
    config.head_dim = json.int_or("head_dim", family.head_dim.value_or(0), kHeadDimRange);
  } else {
    if (config.dim % config.heads != 0) {
      json.fail("hidden_size", "a multiple of num_attention_heads, " +
                                   std::to_string(config.heads) + ", as there is no head_dim");
    }
    config.head_dim = config.dim / config.heads;
  }
  if (config.head_dim < kHeadDimRange.min || config.head_dim > kHeadDimRange.max ||
      config.head_dim % 2 != 0) {
    json.fail("head_dim", "an even number from " + std::to_string(kHeadDimRange.min) + " to " +
                              std::to_string(kHeadDimRange.max) + ", got " +
                              std::to_string(config.head_dim));
  }
  config.rotary_dim = config.head_dim;
}

/// The object of the two that says something under a key; else the first.
const JsonObject& who_says(const char* key, const JsonObject& first, const JsonObject& second) {
  return !first.has(key) && second.has(key) ? second : first;
}

std::optional<DType> read_stored_dtype(const JsonObject& json) {
  const char* const key = json.has("dtype") ? "dtype" : "torch_dtype";
  const auto name = json.find_string(key);
  if (name == "float32") return DType::kF32;
  if (name == "float16") return DType::kF16;
  if (name == "bfloat16") return DType::kBF16;
  return std::nullopt;
}

/// Token ids of a key, those outside the vocabulary left out with a warning: nothing can sample
/// them.
std::vector<std::int64_t> read_ids(const JsonObject& json, const char* key, DecoderConfig& config) {
  std::vector<std::int64_t> out;
  for (const std::int64_t id : json.find_ints(key).value_or(std::vector<std::int64_t>{})) {
    if (id >= 0 && id < config.vocab) {
      if (std::ranges::find(out, id) == out.end()) out.push_back(id);
    } else {
      config.warnings.push_back(json.file() + ": " + key + " " + std::to_string(id) +
                                " is outside the vocabulary of " + std::to_string(config.vocab) +
                                ", ignored");
    }
  }
  return out;
}

/// generation_config.json's key counts where it is written, else config.json's, else the family's.
std::vector<std::int64_t> read_token_ids(const JsonObject& json, const JsonObject* generation,
                                         const char* key, const std::vector<std::int64_t>& fallback,
                                         DecoderConfig& config) {
  if (generation != nullptr && generation->contains(key)) return read_ids(*generation, key, config);
  if (json.contains(key)) return read_ids(json, key, config);
  std::vector<std::int64_t> out = fallback;
  std::erase_if(out, [&](std::int64_t id) { return id >= config.vocab; });
  return out;
}

/// GGUF files hold what angles are divided by as a tensor, worked out of what config.json would
/// say.
void read_rope_factors(const Checkpoint& checkpoint, DecoderConfig& config) {
  constexpr const char* kName = "rope_freqs.weight";
  const TensorInfo* const tensor = checkpoint.find(kName);
  if (tensor == nullptr) return;
  const auto fail = [&](const std::string& what) {
    throw Error(std::string(tensor->file) + ": tensor \"" + kName + "\" " + what);
  };
  if (config.rope.type != RopeType::kDefault) {
    fail("stands beside RoPE of type " + std::string(name_of(config.rope.type)) +
         ", expected one of both");
  }
  config.rope.type = RopeType::kFactors;
  config.rope.factors = checkpoint.vector(kName, config.rotary_dim / 2);
  for (const float factor : config.rope.factors) {
    if (!(factor > 0 && std::isfinite(factor))) {
      fail("holds " + std::to_string(factor) + ", expected finite numbers above 0");
    }
  }
}

}  // namespace

std::string supported_model_types() {
  std::string out;
  for (const Family& family : families())
    out += (out.empty() ? "" : ", ") + std::string(family.model_type);
  return out;
}

DecoderConfig parse_config(std::string_view config_json,
                           std::optional<std::string_view> generation_json,
                           const std::string& folder) {
  const std::filesystem::path path(folder);
  const auto document = JsonDocument::parse(config_json, (path / "config.json").string(), kLimits);
  const JsonObject root = document.root();
  const Family& family = read_family(root);
  refuse_unsupported(root);
  const JsonObject json = family.nested ? root.require_object("text_config") : root;
  if (family.nested) refuse_unsupported(json);

  DecoderConfig config;
  config.model_type = family.model_type;
  read_sizes(json, family, config);
  config.norm_eps = static_cast<float>(json.number_or("rms_norm_eps", family.norm_eps, {0.0, 1.0}));
  const char* const tie = "tie_word_embeddings";
  config.tie_embeddings = who_says(tie, root, json).bool_or(tie, false);
  config.windows.assign(static_cast<std::size_t>(config.layers), 0);
  family.apply(json, config);
  config.rope =
      read_rope(json, config.max_positions, config.head_dim, config.rotary_dim, family.rope_theta);
  config.max_positions_hard = config.rope.position_limit().has_value();
  config.stored_dtype = read_stored_dtype(json);
  if (!config.stored_dtype) config.stored_dtype = read_stored_dtype(root);

  std::optional<JsonDocument> generation_document;
  std::optional<JsonObject> generation;
  if (generation_json) {
    generation_document =
        JsonDocument::parse(*generation_json, (path / "generation_config.json").string(), kLimits);
    generation = generation_document->root();
    config.generation = read_generation(*generation, config.vocab, config.warnings);
  }
  const JsonObject* const defaults = generation ? &*generation : nullptr;
  const auto ids_of = [&](const char* key, const std::vector<std::int64_t>& fallback) {
    return read_token_ids(who_says(key, root, json), defaults, key, fallback, config);
  };
  config.eos = ids_of("eos_token_id", family.eos);
  const auto default_bos = family.bos ? std::vector{*family.bos} : std::vector<std::int64_t>{};
  const auto bos = ids_of("bos_token_id", default_bos);
  if (!bos.empty()) config.bos = bos.front();
  return config;
}

DecoderConfig load_config(const Checkpoint& checkpoint) {
  if (const std::string name = "hf_quant_config.json"; checkpoint.has_text(name)) {
    const std::string text = checkpoint.text(name, kLimits.max_bytes);
    check_hf_quant_config(
        JsonDocument::parse(text, (checkpoint.path() / name).string(), kLimits).root());
  }
  const std::string config = checkpoint.text("config.json", kLimits.max_bytes);
  std::optional<std::string> generation;
  if (checkpoint.has_text("generation_config.json")) {
    generation = checkpoint.text("generation_config.json", kLimits.max_bytes);
  }
  DecoderConfig out = parse_config(config, generation, checkpoint.path().string());
  read_rope_factors(checkpoint, out);
  return out;
}

}  // namespace dendrite
