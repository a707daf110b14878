#include "model/config_windows.h"

#include <algorithm>

namespace dendrite {
namespace {

constexpr IntRange kWindowRange{1, std::int64_t{1} << 30};

}  // namespace

std::optional<std::vector<std::string>> read_layer_types(const JsonObject& json,
                                                         std::int64_t layers,
                                                         const std::string& other) {
  auto types = json.find_strings("layer_types");
  if (!types) return types;
  if (static_cast<std::int64_t>(types->size()) != layers) {
    json.fail("layer_types", "one for each of num_hidden_layers, " + std::to_string(layers));
  }
  for (std::string& type : *types) {
    if (type == "attention") type = "full_attention";
    if (type != "full_attention" && type != other) {
      json.fail("layer_types", "\"full_attention\" or " + in_quotes(other) + " in each place (" +
                                   in_quotes(type) + " is not supported)");
    }
  }
  return types;
}

std::int64_t read_window(const JsonObject& json, std::int64_t missing) {
  if (!json.contains("sliding_window")) return missing;
  return json.find_int("sliding_window", kWindowRange).value_or(0);
}

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

void set_windows(const JsonObject& json, std::int64_t window,
                 const std::function<bool(std::int64_t layer)>& slides, DecoderConfig& config) {
  const auto types = read_layer_types(json, config.layers);
  for (std::int64_t i = 0; i < config.layers; ++i) {
    const auto layer = static_cast<std::size_t>(i);
    const bool does = types ? (*types)[layer] == "sliding_attention" : slides(i);
    if (types && does && window == 0) {
      json.fail("layer_types", "no \"sliding_attention\", since sliding_window is null");
    }
    config.windows[layer] = does ? window : 0;
  }
}

void set_chunks(const JsonObject& json, DecoderConfig& config) {
  const char* const key = "attention_chunk_size";
  const std::string kind = "chunked_attention";
  const auto types = read_layer_types(json, config.layers, kind);
  const std::int64_t chunk =
      json.contains(key) ? json.find_int(key, kWindowRange).value_or(0) : 8192;
  config.chunked = true;
  for (std::int64_t i = 0; i < config.layers; ++i) {
    const auto layer = static_cast<std::size_t>(i);
    const bool has_chunks = types ? (*types)[layer] == kind : config.is_rotated(i);
    if (has_chunks && chunk == 0) {
      json.fail(key, "a number, since layers are of " + in_quotes(kind));
    }
    config.windows[layer] = has_chunks ? chunk : 0;
  }
}

void set_qwen_windows(const JsonObject& json, DecoderConfig& config) {
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

}  // namespace dendrite
