#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "io/json_file.h"
#include "model/config.h"

namespace dendrite {

/// What missing keys of a config mean, and what sets a family apart. The defaults are those of the
/// config classes of transformers 5.23.
struct Family {
  const char* model_type;
  std::vector<std::string> architectures;
  std::int64_t vocab = 32000;
  std::int64_t ffn_dim = 11008;
  std::int64_t max_positions = 32768;
  std::optional<std::int64_t> kv_heads{};  // nullopt: as many as heads
  std::optional<std::int64_t> head_dim{};  // nullopt: dim / heads
  std::optional<std::int64_t> bos{};
  std::vector<std::int64_t> eos{};
  /// Reads what only this family has: biases, norms, windows, and DecoderConfig::rope where that is
  /// read in another way (own_rope).
  void (*apply)(const JsonObject& json, DecoderConfig& config) = nullptr;
  /// Of text and more: the model's own config is "text_config" of the file's.
  bool nested = false;
  std::int64_t dim = 4096;
  std::int64_t layers = 32;
  std::int64_t heads = 32;
  double norm_eps = 1e-6;
  double rope_theta = 10000;
  bool tied = false;  // the output matrix is the embedding
  bool own_rope = false;
  bool layers_differ = false;  // "per_layer_config" may be there
  Activation::Kind activation = Activation::Kind::kSilu;
  const char* activation_key = "hidden_act";
  /// Where `nested`: the families that the text may be of, the first where it does not say. Empty:
  /// this row is the text's, too.
  std::vector<std::string> texts{};
};

/// All of them. To support another one: a row here, and a function in one of the files named
/// config_*.h for what sets it apart.
std::span<const Family> families();

/// The one of a model_type; null: there is none.
const Family* find_family(std::string_view model_type);

}  // namespace dendrite
