#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "io/gguf_family.h"

namespace dendrite {

/// Hugging Face's name of a tensor of a GGUF file of this family: "blk.0.attn_q.weight" is
/// "model.layers.0.self_attn.q_proj.weight". nullopt: the tensor is none of such a model's.
std::optional<std::string> tensor_name_of(const GgufFamily& family, std::string_view gguf_name);

/// The layer that a tensor is of; nullopt: of none.
std::optional<std::int64_t> layer_of(std::string_view gguf_name);

/// Whether it is a tensor that says nothing: what older files hold of RoPE, and scales of
/// activations, which are not quantised.
bool says_nothing(std::string_view gguf_name);

}  // namespace dendrite
