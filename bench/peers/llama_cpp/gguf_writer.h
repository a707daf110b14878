#pragma once

#include <filesystem>
#include <string>

namespace dendrite::bench {

/// Writes the weights of a Llama-kind model folder (safetensors) as one GGUF file, for llama.cpp,
/// with the tokens' texts where it has a byte-level tokenizer. `type`: "bf16" or "f16" for
/// matrices; norms are f32. An existing file is kept. Format:
/// https://github.com/ggml-org/ggml/blob/master/docs/gguf.md, version 3. Throws Error.
void write_gguf(const std::filesystem::path& folder, const std::string& type,
                const std::filesystem::path& target);

}  // namespace dendrite::bench
