#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "dendrite/dendrite.h"

namespace dendrite::bench {

/// Names of the built-in model shapes, smallest first. "tiny" attends to a window only, so that
/// long branches are made quickly; the others are the shapes of models people run.
std::vector<std::string> shape_names();

/// An engine over a built-in shape with random weights made in memory. `tokenizer`: a folder with
/// a tokenizer.json, whose vocabulary takes the place of the shape's.
Engine load_shape(const std::string& shape, EngineOptions options,
                  const std::filesystem::path& tokenizer = {});

/// Writes config.json and model.safetensors with random weights of a shape (bf16, N(0, 1/cols) but
/// for norms, which are 1), unless the folder holds them already. The same bytes for the same
/// shape and vocabulary. `tokenizer`: see load_shape.
void write_checkpoint(const std::string& shape, const std::filesystem::path& folder,
                      const std::filesystem::path& tokenizer = {});

/// Token ids in [0, vocab), reproducible.
std::vector<Token> random_tokens(std::int64_t count, std::int64_t vocab, std::uint64_t seed);

}  // namespace dendrite::bench
