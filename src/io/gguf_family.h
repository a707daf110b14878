#pragma once

#include <cstdint>
#include <initializer_list>
#include <nlohmann/json_fwd.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "io/gguf_keys.h"
#include "quant/tensor_info.h"

namespace dendrite {

/// What a tensor of a layer is called, behind the layer's prefix.
struct GgufName {
  std::string_view gguf;  // less ".weight", ".bias" or ".scale"; of a `whole` one all of it
  std::string_view here;
  bool bias = false;   // may have one
  bool whole = false;  // the names are all there is
};

/// What a family's config is made of.
struct GgufSource {
  const GgufKeys& keys;
  std::span<const TensorInfo> tensors;  // sorted by name, as the file has them
  std::int64_t layers = 0;              // less those that predict further tokens

  const TensorInfo* find(std::string_view name) const;
  /// Of a layer: "blk.3." and `name`.
  bool has(std::int64_t layer, std::string_view name) const;
  bool any_ends_with(std::string_view suffix) const;
};

/// What sets a family apart in GGUF files.
struct GgufFamily {
  const char* architecture;  // as general.architecture says it
  const char* model_type;    // as config.json does, unless `read` says another
  std::vector<std::span<const GgufName>> names;
  bool paired = false;         // rows of q and k lie in pairs
  bool zero_centred = false;   // weights of norms are stored with the 1 that is added to them
  bool partial = false;        // RoPE may turn a part of a head
  bool partly = false;         // layers say 0 of what they have none of: heads of k and v, widths
  bool unrotated = false;      // there is no RoPE, whatever the file says of it
  bool layers_differ = false;  // in heads and widths: `read` says both
  bool has_head = false;       // a layer that predicts a further token is that of an MTP head
  bool tiled = false;          // value heads of delta networks lie in turns of their key heads
  /// Of the whole model, beside those that all families have.
  std::span<const GgufName> of_model{};
  /// Tensors that config.json says what is in.
  std::span<const std::string_view> said{};
  /// What only this family says. `config` has all that families share.
  void (*read)(const GgufSource& source, nlohmann::ordered_json& config) = nullptr;
};

/// All of them. To support another one: a row there, and a function in one of gguf_config_*.cpp.
std::span<const GgufFamily> gguf_families();

/// Of the file's general.architecture. Throws Error where it is missing or not supported.
const GgufFamily& gguf_family(const GgufMetadata& metadata);

}  // namespace dendrite
