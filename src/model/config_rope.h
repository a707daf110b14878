#pragma once

#include <cstdint>

#include <optional>
#include <vector>

#include "io/json_file.h"
#include "model/config.h"
#include "model/rope.h"

namespace dendrite {

/// The RoPE settings of a config.json, in either spelling: "rope_parameters", or "rope_theta" with
/// "rope_scaling". Throws Error naming the key when they are out of range, or when the type or a
/// table per layer kind is not supported, or a partial rotation where `rotary_dim`, what is rotated
/// of a head, is all of it. `theta`: where none is there.
RopeConfig read_rope(const JsonObject& config, std::int64_t max_positions, std::int64_t head_dim,
                     std::int64_t rotary_dim, double theta);

struct LayerRopes {
  RopeConfig full;
  RopeConfig local;  // of layers with a window
};
/// The same where each kind of layer has its own: "rope_parameters" by kind, or "rope_theta" with
/// "rope_scaling" for full attention alone, and for local layers `local_key` (null: no key) or
/// `local_theta`.
LayerRopes read_layer_ropes(const JsonObject& config, std::int64_t max_positions,
                            std::int64_t head_dim, double theta, double local_theta,
                            const char* local_key);

/// The RoPE of Phi: plain, or LongRoPE (Ding et al. 2024, arXiv:2402.13753).
RopeConfig read_longrope(const JsonObject& config, std::int64_t max_positions,
                         std::int64_t rotary_dim);

/// [layers]: those without RoPE, by "no_rope_layers", or each "no_rope_layer_interval"-th.
std::vector<bool> read_unrotated(const JsonObject& config, std::int64_t layers);

/// "llama_4_scaling_beta" of the RoPE settings; none: queries do not grow.
std::optional<QueryGrowth> read_query_growth(const JsonObject& config);

/// The dims of a head that are rotated: its "partial_rotary_factor", or `missing`. Checks
/// "mrope_section" against it: of a text alone its three positions are one. Throws Error naming the
/// key.
std::int64_t read_rotary_dim(const JsonObject& config, std::int64_t head_dim, double missing);

}  // namespace dendrite
