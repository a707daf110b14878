#include "model/drafter_config.h"

#include <algorithm>
#include <cmath>
#include <optional>

#include "io/checkpoint.h"
#include "io/json_file.h"
#include "model/config_rope.h"

namespace dendrite {
namespace {

// Beyond these a file is taken to be broken, as in config.cpp.
constexpr IntRange kFfnRange{1, 1 << 20};
constexpr IntRange kLayerRange{1, 64};
constexpr IntRange kHeadRange{1, 4096};
constexpr IntRange kHeadDimRange{2, 512};
constexpr IntRange kBlockRange{2, 128};
constexpr IntRange kPositionRange{1, std::int64_t{1} << 30};
constexpr JsonLimits kLimits{};

/// What is written in "dflash_config", else at the root.
class Settings {
 public:
  explicit Settings(const JsonObject& root)
      : root_(root), own_(root.find_object("dflash_config")) {}

  const JsonObject& place_of(const char* key) const {
    return own_ && own_->has(key) ? *own_ : root_;
  }
  bool has(const char* key) const { return place_of(key).has(key); }

 private:
  const JsonObject& root_;
  std::optional<JsonObject> own_;
};

void refuse_unsupported(const JsonObject& json, const Settings& settings) {
  const auto names = json.find_strings("architectures");
  if (!names || names->size() != 1 || names->front() != "DFlashDraftModel") {
    json.fail("architectures", "[\"DFlashDraftModel\"] (other drafters are not supported)");
  }
  if (json.bool_or("attention_bias", false)) {
    json.fail("attention_bias", "false (biases are not supported)");
  }
  for (const char* key : {"attention_sink_bias", "add_swa_attention_sink_bias"}) {
    const JsonObject& place = settings.place_of(key);
    if (place.find_bool(key).value_or(false)) {
      place.fail(key, "false (attention sinks are not supported)");
    }
  }
  if (json.contains("hidden_act")) {
    const std::string act = json.require_string("hidden_act");
    if (act != "silu" && act != "swish") {
      json.fail("hidden_act", "\"silu\" (other activations are not supported)");
    }
  }
}

/// Evenly from the second layer to the third from the end; of one: the middle.
std::vector<std::int64_t> default_taps(std::int64_t count, std::int64_t layers) {
  if (count == 1) return {layers / 2};
  std::vector<std::int64_t> taps;
  for (std::int64_t i = 0; i < count; ++i) {
    const double at = 1 + static_cast<double>(i * (layers - 4)) / static_cast<double>(count - 1);
    taps.push_back(static_cast<std::int64_t>(std::nearbyint(at)));  // halves to even, as Python
  }
  return taps;
}

std::vector<std::int64_t> read_taps(const JsonObject& json, const Settings& settings,
                                    const ModelInfo& target, std::int64_t layers) {
  if (const auto told = json.find_int("num_target_layers"); told && *told != target.sizes.layers) {
    json.fail("num_target_layers", "the model's number of layers, " +
                                       std::to_string(target.sizes.layers) +
                                       " (it was trained for another one)");
  }
  const JsonObject& place = settings.place_of("target_layer_ids");
  std::vector<std::int64_t> taps =
      place.find_ints("target_layer_ids").value_or(default_taps(layers, target.sizes.layers));
  const bool ascends = std::ranges::adjacent_find(taps, std::greater_equal{}) == taps.end();
  if (taps.empty() || !ascends || taps.front() < 0 || taps.back() >= target.sizes.layers) {
    place.fail("target_layer_ids", "layers of the model, ascending, from 0 to " +
                                       std::to_string(target.sizes.layers - 1));
  }
  return taps;
}

/// A causality that is written counts for all layers; else those that slide are causal.
std::vector<DrafterConfig::Attention> read_attention(const JsonObject& json,
                                                     const Settings& settings,
                                                     std::int64_t layers) {
  std::optional<bool> causal = json.find_bool("is_causal");
  if (!causal) causal = settings.place_of("causal").find_bool("causal");
  const auto types = json.find_strings("layer_types");
  if (types && std::ssize(*types) != layers) {
    json.fail("layer_types", "one for each of num_hidden_layers, " + std::to_string(layers));
  }
  std::vector<DrafterConfig::Attention> out;
  for (std::int64_t i = 0; i < layers; ++i) {
    const std::string type = types ? (*types)[static_cast<std::size_t>(i)] : "full_attention";
    if (type != "full_attention" && type != "sliding_attention") {
      json.fail("layer_types", "\"full_attention\" or \"sliding_attention\" in each place");
    }
    const bool slides = type == "sliding_attention";
    DrafterConfig::Attention& layer = out.emplace_back();
    layer.causal = causal.value_or(slides);
    if (!slides) continue;
    layer.window = json.require_int("sliding_window", kPositionRange);
    if (!layer.causal) {
      json.fail("layer_types",
                "no \"sliding_attention\" where is_causal is false (sliding layers that see what "
                "comes after are not supported)");
    }
  }
  return out;
}

}  // namespace

DrafterConfig parse_drafter_config(std::string_view text, const std::string& file,
                                   const ModelInfo& target) {
  const auto document = JsonDocument::parse(text, file, kLimits);
  const JsonObject json = document.root();
  const Settings settings(json);
  refuse_unsupported(json, settings);
  if (target.scales) {
    json.fail("model_type", "none: a model of type " + target.type +
                                " scales its embeddings or logits, which no drafter reads so");
  }
  DrafterConfig config;
  config.dim = json.require_int("hidden_size", {1, 65536});
  if (config.dim != target.sizes.dim) {
    json.fail("hidden_size", "the model's, " + std::to_string(target.sizes.dim) +
                                 " (it was trained for another one)");
  }
  config.vocab = target.vocab;
  config.ffn_dim = json.require_int("intermediate_size", kFfnRange);
  config.layers = json.require_int("num_hidden_layers", kLayerRange);
  config.heads = json.require_int("num_attention_heads", kHeadRange);
  config.kv_heads = json.int_or("num_key_value_heads", config.heads, kHeadRange);
  if (config.heads % config.kv_heads != 0) {
    json.fail("num_key_value_heads",
              "a divisor of num_attention_heads, " + std::to_string(config.heads));
  }
  config.head_dim = json.int_or("head_dim", config.dim / config.heads, kHeadDimRange);
  if (config.head_dim < 2 || config.head_dim % 2 != 0) json.fail("head_dim", "an even number");
  config.block_size = settings.place_of("block_size").require_int("block_size", kBlockRange);
  config.mask_token = static_cast<Token>(
      settings.place_of("mask_token_id").require_int("mask_token_id", {0, target.vocab - 1}));
  config.taps = read_taps(json, settings, target, config.layers);
  config.attention = read_attention(json, settings, config.layers);
  const std::int64_t positions =
      json.int_or("max_position_embeddings", target.positions.max, kPositionRange);
  config.rope = read_rope(json, positions, config.head_dim, config.head_dim, 10000);
  config.norm_eps = static_cast<float>(json.number_or("rms_norm_eps", 1e-6, {0.0, 1.0}));
  return config;
}

DrafterConfig load_drafter_config(const Checkpoint& checkpoint, const ModelInfo& target) {
  return parse_drafter_config(checkpoint.text("config.json", kLimits.max_bytes),
                              (checkpoint.path() / "config.json").string(), target);
}

}  // namespace dendrite
