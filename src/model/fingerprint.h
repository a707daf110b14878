#pragma once

#include <cstdint>

#include "model/config.h"

namespace dendrite {

class ModelFolder;

/// Tells models apart: what of the config K, V and logits depend on; names, types and shapes of the
/// folder's tensors; and a KB of bytes of each, spread over it. Equal for a copy of a folder and
/// for a config that only says other things about sampling. Random weights: the config alone. Reads
/// a few pages a tensor, which loading has just brought into memory.
std::uint64_t model_fingerprint(const DecoderConfig& config, const ModelFolder& folder,
                                bool dummy_weights);

}  // namespace dendrite
