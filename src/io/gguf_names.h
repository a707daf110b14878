#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "io/gguf_family.h"

namespace dendrite {

/// Hugging Face's name of a tensor of a GGUF file of this family: "blk.0.attn_q.weight" is
/// "model.layers.0.self_attn.q_proj.weight". Layers from `further` on are those of an MTP head:
/// "mtp.layers.0.". nullopt: the tensor is none of such a model's.
std::optional<std::string> tensor_name_of(const GgufFamily& family, std::string_view gguf_name,
                                          std::int64_t further);

/// The layer that a tensor is of; nullopt: of none.
std::optional<std::int64_t> layer_of(std::string_view gguf_name);

/// Whether it is one of an MTP head that does not share the model's embedding or output matrix.
bool is_own_of_head(std::string_view gguf_name);

/// Whether it is a tensor that says nothing: what older files hold of RoPE, and scales of
/// activations, which are not quantised.
bool says_nothing(std::string_view gguf_name);

}  // namespace dendrite
