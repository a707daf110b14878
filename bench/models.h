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

/// config.json of a built-in shape. Throws Error when there is none of that name.
std::string shape_config(const std::string& shape);

/// An engine over a built-in shape with random weights made in memory.
Engine load_shape(const std::string& shape, EngineOptions options);

/// Writes config.json and model.safetensors with random weights of a shape (bf16, N(0, 1/cols) but
/// for norms, which are 1), unless the folder holds them already. The same bytes for the same
/// shape.
void write_checkpoint(const std::string& shape, const std::filesystem::path& folder);

/// Token ids in [0, vocab), reproducible.
std::vector<Token> random_tokens(std::int64_t count, std::int64_t vocab, std::uint64_t seed);

}  // namespace dendrite::bench
