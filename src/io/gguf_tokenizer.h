#pragma once

#include <string>

#include "io/gguf_metadata.h"

namespace dendrite {

/// Whether the file has a tokenizer.
bool has_gguf_tokenizer(const GgufMetadata& metadata);

/// tokenizer.json as Hugging Face writes it for the file's tokenizer, which it has: BPE over bytes
/// ("gpt2") or SentencePiece's BPE ("llama"); or the one that the file holds as it is. Throws Error
/// naming the key: missing, broken, or of a kind that is not supported.
std::string gguf_tokenizer(const GgufMetadata& metadata);

/// tokenizer_config.json likewise: the tokens that have names, and the chat templates.
std::string gguf_tokenizer_config(const GgufMetadata& metadata);

}  // namespace dendrite
