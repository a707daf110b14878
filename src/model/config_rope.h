#pragma once

#include <cstdint>

#include "io/json_file.h"
#include "model/rope.h"

namespace dendrite {

/// The RoPE settings of a config.json, in either spelling: "rope_parameters", or "rope_theta" with
/// "rope_scaling". Throws Error naming the key when they are out of range, or when the type, a
/// partial rotation or a table per layer kind is not supported.
RopeConfig read_rope(const JsonObject& config, std::int64_t max_positions, std::int64_t head_dim);

}  // namespace dendrite
