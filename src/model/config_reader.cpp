#include "model/config_reader.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <filesystem>
#include <span>
#include <utility>

#include "dendrite/error.h"
#include "io/checkpoint.h"
#include "io/json_file.h"
#include "model/config_quantization.h"
#include "model/config_rope.h"
#include "model/families.h"

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

// --- what all families share

bool equal_ignoring_case(std::string_view a, std::string_view b) {
  return std::ranges::equal(
      a, b, [](unsigned char x, unsigned char y) { return std::tolower(x) == std::tolower(y); });
}

const Family& read_family(const JsonObject& json) {
  const std::string type = json.find_string("model_type").value_or("");
  const Family* const family = find_family(type);
  if (family == nullptr) {
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

/// That of the text of a model of text and more.
const Family& text_family(const Family& whole, const JsonObject& text) {
  if (whole.texts.empty()) return whole;
  const std::string type = text.find_string("model_type").value_or(whole.texts.front());
  if (std::ranges::find(whole.texts, type) == whole.texts.end()) {
    std::string expected;
    for (const std::string& known : whole.texts) {
      expected += (expected.empty() ? "" : " or ") + in_quotes(known);
    }
    text.fail("model_type", expected + " (others are not supported there)");
  }
  return *find_family(type);
}

std::vector<std::string> names_of(Activation::Kind kind) {
  if (kind == Activation::Kind::kGelu) return {"gelu_pytorch_tanh"};
  return {"silu", "swish"};
}

/// Settings that change what is computed and that we do not compute.
void refuse_unsupported(const JsonObject& json, const Family& family) {
  check_quantization(json);
  if (!family.layers_differ && json.has("per_layer_config"))
    json.fail("per_layer_config", "none (layers that differ are not supported)");
  if (json.find_bool("is_encoder_decoder").value_or(false)) {
    json.fail("is_encoder_decoder", "false (only decoders are supported)");
  }
  if (json.contains(family.activation_key)) {
    const std::vector<std::string> names = names_of(family.activation);
    const std::string act = json.require_string(family.activation_key);
    if (std::ranges::find(names, act) == names.end()) {
      json.fail(family.activation_key,
                in_quotes(names.front()) + " (other activations are not supported)");
    }
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
  const auto document =
      JsonDocument::parse(with_named_floats(config_json), (path / "config.json").string(), kLimits);
  const JsonObject root = document.root();
  const Family& whole = read_family(root);
  const JsonObject json = whole.nested ? root.require_object("text_config") : root;
  const Family& family = text_family(whole, json);
  refuse_unsupported(root, family);
  if (whole.nested) refuse_unsupported(json, family);

  DecoderConfig config;
  config.model_type = whole.model_type;
  config.keeps_fp8_inputs = keeps_fp8_inputs(root) || keeps_fp8_inputs(json);
  config.rounds_block_inputs = rounds_block_inputs(root) || rounds_block_inputs(json);
  config.activation.kind = family.activation;
  read_sizes(json, family, config);
  config.norm_eps = static_cast<float>(json.number_or("rms_norm_eps", family.norm_eps, {0.0, 1.0}));
  const char* const tie = "tie_word_embeddings";
  const JsonObject& says = whole.texts.empty() ? who_says(tie, root, json) : root;
  config.tie_embeddings = says.bool_or(tie, whole.tied);
  config.windows.assign(static_cast<std::size_t>(config.layers), 0);
  family.apply(json, config);
  if (!family.own_rope) {
    config.rope = read_rope(json, config.max_positions, config.head_dim, config.rotary_dim,
                            family.rope_theta);
  }
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
  bool rounds_inputs = false;
  if (const std::string name = "hf_quant_config.json"; checkpoint.has_text(name)) {
    const std::string text = checkpoint.text(name, kLimits.max_bytes);
    const auto settings = JsonDocument::parse(text, (checkpoint.path() / name).string(), kLimits);
    check_hf_quant_config(settings.root());
    rounds_inputs = rounds_block_inputs(settings.root());
  }
  const std::string config = checkpoint.text("config.json", kLimits.max_bytes);
  std::optional<std::string> generation;
  if (checkpoint.has_text("generation_config.json")) {
    generation = checkpoint.text("generation_config.json", kLimits.max_bytes);
  }
  DecoderConfig out = parse_config(config, generation, checkpoint.path().string());
  out.rounds_block_inputs = out.rounds_block_inputs || rounds_inputs;
  read_rope_factors(checkpoint, out);
  return out;
}

}  // namespace dendrite
