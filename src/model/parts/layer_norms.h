#pragma once

#include <string>

namespace dendrite {

/// The norms of a layer, by their tensors' names behind its prefix, less ".weight". Empty: there is
/// none. One before a part takes the stream; one behind it takes what the part gives to the stream.
struct LayerNorms {
  std::string before_mixer = "input_layernorm";
  std::string behind_mixer{};
  std::string before_ffn = "post_attention_layernorm";
  std::string behind_ffn{};

  bool operator==(const LayerNorms&) const = default;
};

}  // namespace dendrite
