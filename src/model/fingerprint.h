#pragma once

#include <cstdint>

namespace dendrite {

class Checkpoint;

/// Tells models apart: what of the config K, V and logits depend on (ModelInfo::config_hash);
/// names, types and shapes of the checkpoint's tensors; and a KB of bytes of each, spread over it.
/// Equal for a copy of a folder and for a config that only says other things about sampling. Random
/// weights: the config alone. Reads a few pages a tensor, which loading has just brought into
/// memory.
std::uint64_t model_fingerprint(std::uint64_t config_hash, const Checkpoint& checkpoint,
                                bool dummy_weights);

}  // namespace dendrite
