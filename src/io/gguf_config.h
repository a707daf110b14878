#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/gguf_family.h"
#include "io/gguf_rows.h"

namespace dendrite {

/// The first of the layers that predict further tokens, which lie behind the model's own; nullopt:
/// there are none. Throws Error naming the key.
std::optional<std::int64_t> gguf_further_layers(const GgufMetadata& metadata);

/// How tensors lie in the file. Throws Error naming the key.
GgufLayout gguf_layout(const GgufMetadata& metadata);

/// config.json as Hugging Face would write it for the model, from the metadata and the shapes of
/// `tensors`. What it leaves unread goes into `warnings`. Throws Error naming the key: missing, of
/// a wrong type, or saying what is not supported; nothing is ever computed wrongly instead.
std::string gguf_config(const GgufMetadata& metadata, std::span<const TensorInfo> tensors,
                        std::vector<std::string>& warnings);

/// generation_config.json likewise: tokens that end a text, and how the file says to sample.
std::string gguf_generation_config(const GgufMetadata& metadata);

}  // namespace dendrite
