#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "model/config.h"

namespace dendrite {

class Checkpoint;

/// Reads config.json and, where there is one, generation_config.json. What a key that is missing
/// means is what transformers 5 takes it to mean for that family. Throws Error naming file and key:
/// a wrong type or range, or something that is not supported (model type, activation, RoPE type,
/// layer kind, quantisation); nothing is ever computed wrongly instead.
DecoderConfig load_config(const Checkpoint& checkpoint);

/// The same from texts. `folder` only names the files in messages; without `generation_json` the
/// folder has no such file.
DecoderConfig parse_config(std::string_view config_json,
                           std::optional<std::string_view> generation_json,
                           const std::string& folder);

/// Supported values of model_type, for messages: "llama, mistral, qwen2, ...".
std::string supported_model_types();

}  // namespace dendrite
