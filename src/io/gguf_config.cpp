#include "io/gguf_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "dendrite/error.h"
#include "io/gguf_readers.h"
#include "quant/formats.h"

namespace dendrite {
namespace {

using Json = GgufJson;

constexpr std::int64_t kMostLayers = 1 << 16;

GgufKeys keys_of(const GgufMetadata& metadata) {
  return {metadata, gguf_family(metadata).architecture};
}

std::int64_t layers_of(const GgufKeys& keys) {
  const std::int64_t all = keys.require_int("block_count");
  if (all > kMostLayers) keys.fail("block_count", "at most " + std::to_string(kMostLayers));
  const std::int64_t further = keys.find_int("nextn_predict_layers").value_or(0);
  if (further >= all && further > 0) {
    keys.fail("nextn_predict_layers", "less than block_count, " + std::to_string(all));
  }
  return all - further;
}

std::int64_t heads_of(const GgufKeys& keys) {
  const std::int64_t heads = keys.require_of_layers("attention.head_count");
  if (heads < 1) keys.fail("attention.head_count", "1 or more");
  return heads;
}

/// A file that doesn't say it has heads that share the width of the model.
std::int64_t head_dim_of(const GgufKeys& keys) {
  if (const auto head_dim = keys.find_int("attention.key_length")) return *head_dim;
  const std::int64_t dim = keys.require_int("embedding_length");
  const std::int64_t heads = heads_of(keys);
  if (dim % heads != 0) {
    keys.fail("embedding_length", "a multiple of " + std::to_string(heads) + ", the heads");
  }
  return dim / heads;
}

void add_heads(const GgufKeys& keys, const GgufFamily& family, Json& config) {
  const std::int64_t dim = keys.require_int("embedding_length");
  const std::int64_t heads = heads_of(keys);
  config["hidden_size"] = dim;
  config["num_attention_heads"] = heads;
  const char* const kKv = "attention.head_count_kv";
  if (!family.layers_differ) {
    const auto kv_heads = family.partly ? keys.find_of_some_layers(kKv) : keys.find_of_layers(kKv);
    config["num_key_value_heads"] = kv_heads.value_or(heads);
  }
  const std::int64_t head_dim = head_dim_of(keys);
  config["head_dim"] = head_dim;
  const char* const kValues = "attention.value_length";
  if (keys.find_int(kValues).value_or(head_dim) != head_dim) {
    keys.fail(kValues, std::to_string(head_dim) + ", the size of a head of k");
  }
}

/// Layers that are all mixtures need no width of others.
void add_width(const GgufSource& source, bool partly, Json& config) {
  const char* const kWidth = "feed_forward_length";
  const bool mixtures =
      source.any_ends_with("_exps.weight") && !source.any_ends_with(".ffn_down.weight");
  if (!mixtures && !partly) {
    config["intermediate_size"] = source.keys.require_of_layers(kWidth);
    return;
  }
  const auto width =
      partly ? source.keys.find_of_some_layers(kWidth) : source.keys.find_of_layers(kWidth);
  if (width && *width > 0) config["intermediate_size"] = *width;
}

/// What config.json says of so many dims of a head that RoPE turns, which makes no less of them.
double part_of(std::int64_t rotated, std::int64_t head_dim) {
  const double part = static_cast<double>(rotated) / static_cast<double>(head_dim);
  const bool less = static_cast<std::int64_t>(static_cast<double>(head_dim) * part) < rotated;
  return less ? (static_cast<double>(rotated) + 0.5) / static_cast<double>(head_dim) : part;
}

void add_part(const GgufKeys& keys, bool partial, std::int64_t head_dim, Json& rope) {
  const char* const kRotated = "rope.dimension_count";
  const std::int64_t rotated = keys.find_int(kRotated).value_or(head_dim);
  if (partial && (rotated < 2 || rotated > head_dim)) {
    keys.fail(kRotated, "2 to " + std::to_string(head_dim) + ", the size of a head");
  }
  if (!partial && rotated != head_dim) {
    keys.fail(kRotated,
              std::to_string(head_dim) + ", the size of a head (others are not supported here)");
  }
  if (partial) rope["partial_rotary_factor"] = part_of(rotated, head_dim);
}

void add_yarn(const GgufKeys& keys, Json& rope) {
  rope["original_max_position_embeddings"] =
      keys.require_int("rope.scaling.original_context_length");
  constexpr std::pair<const char*, const char*> kNumbers[] = {
      {"rope.scaling.yarn_beta_fast", "beta_fast"},
      {"rope.scaling.yarn_beta_slow", "beta_slow"},
      {"rope.scaling.yarn_attn_factor", "attention_factor"}};
  for (const auto& [key, name] : kNumbers) {
    if (const auto number = keys.find_number(key)) rope[name] = *number;
  }
}

void add_rope(const GgufKeys& keys, const GgufFamily& family, Json& config) {
  if (family.unrotated) {
    for (const char* key : {"rope.freq_base", "rope.dimension_count"}) keys.skip(key);
    return;
  }
  // 10000 is what the format says of a file without the key.
  Json rope{{"rope_theta", keys.find_number("rope.freq_base").value_or(10000.0)}};
  std::string type(keys.find_string("rope.scaling.type").value_or("none"));
  auto factor = keys.find_number("rope.scaling.factor");
  if (const auto old = keys.find_number("rope.scale_linear"); old && !factor) {
    factor = old;
    type = "linear";
  }
  if (type != "none" && type != "linear" && type != "yarn") {
    keys.fail("rope.scaling.type", "none, linear or yarn (others are not supported)");
  }
  rope["rope_type"] = type == "none" ? "default" : type;
  if (type != "none") {
    if (!factor || *factor <= 0) keys.fail("rope.scaling.factor", "a number above 0");
    rope["factor"] = *factor;
  }
  if (type == "yarn") add_yarn(keys, rope);
  add_part(keys, family.partial, config["head_dim"].get<std::int64_t>(), rope);
  config["rope_parameters"] = std::move(rope);
}

/// Null of packed types, which are none that config.json knows.
Json dtype_of(std::string_view stored_type) {
  if (stored_type == "F32") return "float32";
  if (stored_type == "F16") return "float16";
  if (stored_type == "BF16") return "bfloat16";
  return nullptr;
}

Json token_or_null(const GgufMetadata& metadata, std::string_view key) {
  const auto id = metadata.find_int(key, {0, (std::int64_t{1} << 32) - 1});
  return id ? Json(*id) : Json();
}

}  // namespace

const TensorInfo* GgufSource::find(std::string_view name) const {
  const auto it = std::ranges::lower_bound(tensors, name, {}, &TensorInfo::name);
  return it != tensors.end() && it->name == name ? &*it : nullptr;
}

bool GgufSource::has(std::int64_t layer, std::string_view name) const {
  return find("blk." + std::to_string(layer) + "." + std::string(name)) != nullptr;
}

bool GgufSource::any_ends_with(std::string_view suffix) const {
  return std::ranges::any_of(
      tensors, [&](const TensorInfo& tensor) { return tensor.name.ends_with(suffix); });
}

std::optional<std::int64_t> gguf_further_layers(const GgufMetadata& metadata) {
  const GgufKeys keys = keys_of(metadata);
  if (keys.find_int("nextn_predict_layers").value_or(0) == 0) return std::nullopt;
  return layers_of(keys);
}

GgufLayout gguf_layout(const GgufMetadata& metadata) {
  const GgufFamily& family = gguf_family(metadata);
  const GgufKeys keys = keys_of(metadata);
  GgufLayout layout;
  layout.head_dim = head_dim_of(keys);
  layout.paired = family.paired;
  layout.zero_centred = family.zero_centred;
  layout.tiled = family.tiled;
  if (!family.tiled) return layout;
  layout.key_heads = keys.require_int("ssm.group_count");
  layout.value_heads = keys.require_int("ssm.time_step_rank");
  layout.key_dim = keys.require_int("ssm.state_size");
  if (layout.key_heads < 1 || layout.value_heads < 1 ||
      layout.value_heads % layout.key_heads != 0) {
    keys.fail("ssm.time_step_rank", "a multiple of ssm.group_count, the key heads");
  }
  layout.value_dim = keys.require_int("ssm.inner_size") / layout.value_heads;
  return layout;
}

std::string gguf_config(const GgufMetadata& metadata, std::span<const TensorInfo> tensors,
                        std::vector<std::string>& warnings) {
  const GgufFamily& family = gguf_family(metadata);
  const GgufKeys keys = keys_of(metadata);
  GgufSource source{keys, tensors};
  const TensorInfo* const embedding = source.find("token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2) {
    throw Error(std::string(metadata.file()) + ": " +
                (embedding == nullptr
                     ? "holds no tensor \"token_embd.weight\""
                     : "tensor \"token_embd.weight\" has shape " + shape_text(embedding->shape)) +
                ", expected one of [vocabulary, embedding_length]");
  }
  source.layers = layers_of(keys);
  Json config{{"model_type", family.model_type}};
  add_heads(keys, family, config);
  if (!family.layers_differ) add_width(source, family.partly, config);
  config["num_hidden_layers"] = source.layers;
  config["max_position_embeddings"] = keys.require_int("context_length");
  config["vocab_size"] = embedding->shape[0];
  config["rms_norm_eps"] = keys.require_number("attention.layer_norm_rms_epsilon");
  config["tie_word_embeddings"] = source.find("output.weight") == nullptr;
  config["attention_bias"] =
      source.any_ends_with(".attn_q.bias") || source.any_ends_with(".attn_output.bias");
  config["mlp_bias"] = source.any_ends_with(".ffn_gate.bias");
  config["torch_dtype"] = dtype_of(embedding->stored_type);
  config["bos_token_id"] = token_or_null(metadata, "tokenizer.ggml.bos_token_id");
  config["eos_token_id"] = token_or_null(metadata, "tokenizer.ggml.eos_token_id");
  add_rope(keys, family, config);
  if (family.read != nullptr) family.read(source, config);
  keys.refuse_unread();
  if (auto unread = keys.unread()) warnings.push_back(*std::move(unread));
  return config.dump();
}

std::string gguf_generation_config(const GgufMetadata& metadata) {
  Json eos = Json::array();
  for (const char* name : {"eos", "eot", "eom"}) {
    Json id = token_or_null(metadata, "tokenizer.ggml." + std::string(name) + "_token_id");
    if (!id.is_null() && std::ranges::find(eos, id) == eos.end()) eos.push_back(std::move(id));
  }
  Json out{{"eos_token_id", std::move(eos)}};
  constexpr std::pair<const char*, const char*> kNumbers[] = {
      {"temp", "temperature"},
      {"top_p", "top_p"},
      {"min_p", "min_p"},
      {"penalty_repeat", "repetition_penalty"}};
  for (const auto& [key, name] : kNumbers) {
    const auto number = metadata.find_number("general.sampling." + std::string(key));
    // As the f32 is written where it comes from: 0.7, not 0.699999988079071.
    if (number) out[name] = Json::parse(Json(static_cast<float>(*number)).dump());
  }
  if (const auto top_k = metadata.find_int("general.sampling.top_k")) out["top_k"] = *top_k;
  return out.dump();
}

}  // namespace dendrite
