#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "io/json_file.h"
#include "model/config.h"

// Which layers of a config have sliding windows. All throw Error naming the key.
namespace dendrite {

/// "layer_types" with the old name of full attention replaced, nullopt when missing. Any kind but
/// full attention and `other` is refused.
std::optional<std::vector<std::string>> read_layer_types(
    const JsonObject& json, std::int64_t layers, const std::string& other = "sliding_attention");

/// "sliding_window": `missing` when missing, 0 (full attention) when null.
std::int64_t read_window(const JsonObject& json, std::int64_t missing = 4096);

/// All layers have one window; 0: full attention.
void set_window(const JsonObject& json, std::int64_t window, DecoderConfig& config);

/// Those that "layer_types" says have `window`; where it is missing, those for which `slides` is
/// true.
void set_windows(const JsonObject& json, std::int64_t window,
                 const std::function<bool(std::int64_t layer)>& slides, DecoderConfig& config);

/// Those that "layer_types" says, else all with RoPE, see positions of their own chunk of
/// "attention_chunk_size" alone.
void set_chunks(const JsonObject& json, DecoderConfig& config);

/// Which layers of a Qwen slide: those that "layer_types" says, else all from "max_window_layers"
/// on.
void set_qwen_windows(const JsonObject& json, DecoderConfig& config);

}  // namespace dendrite
