#pragma once

#include <string>
#include <vector>

#include "io/gguf.h"

namespace dendrite {

/// What sets a family apart in GGUF files.
struct GgufFamily {
  const char* architecture;  // as general.architecture says it
  const char* model_type;    // as config.json does
  bool paired;               // rows of q and k lie in pairs
  bool experts;              // layers are mixtures of them
};

/// Of the file's general.architecture. Throws Error where it is missing or not supported.
const GgufFamily& gguf_family(const GgufMetadata& metadata);

/// Values of a head of q, k and v. Throws Error naming the key.
std::int64_t gguf_head_dim(const GgufMetadata& metadata);

/// config.json as Hugging Face would write it for the model, from the metadata and the shapes of
/// `tensors`. What it leaves unread goes into `warnings`. Throws Error naming the key: missing, of
/// a wrong type, or saying what is not supported; nothing is ever computed wrongly instead.
std::string gguf_config(const GgufMetadata& metadata, std::span<const TensorInfo> tensors,
                        std::vector<std::string>& warnings);

/// generation_config.json likewise: tokens that end a text, and how the file says to sample.
std::string gguf_generation_config(const GgufMetadata& metadata);

}  // namespace dendrite
