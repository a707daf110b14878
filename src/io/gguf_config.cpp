#include "io/gguf_config.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>

#include "dendrite/error.h"

namespace dendrite {
namespace {

using Json = nlohmann::ordered_json;

/// To support another family: a row here; what sets it apart is in src/model/config.cpp.
constexpr GgufFamily kFamilies[] = {{"llama", "llama", true, false},
                                    {"qwen2", "qwen2", false, false},
                                    {"qwen3", "qwen3", false, false},
                                    {"qwen3moe", "qwen3_moe", false, true}};

/// Keys behind the architecture's name that are read below, or say what the others do.
constexpr std::string_view kRead[] = {"embedding_length",
                                      "feed_forward_length",
                                      "block_count",
                                      "context_length",
                                      "vocab_size",
                                      "attention.head_count",
                                      "attention.head_count_kv",
                                      "attention.key_length",
                                      "attention.value_length",
                                      "attention.layer_norm_rms_epsilon",
                                      "attention.sliding_window",
                                      "rope.dimension_count",
                                      "rope.freq_base",
                                      "rope.scaling.type",
                                      "rope.scaling.factor",
                                      "rope.scaling.original_context_length",
                                      "rope.scaling.finetuned",
                                      "rope.scaling.yarn_beta_fast",
                                      "rope.scaling.yarn_beta_slow",
                                      "rope.scale_linear",
                                      "expert_count",
                                      "expert_used_count",
                                      "expert_feed_forward_length"};

/// Keys that change what is computed, unless they say this.
struct Neutral {
  std::string_view key;
  double number;
};
constexpr Neutral kNotSupported[] = {{"expert_shared_count", 0},
                                     {"expert_gating_func", 1},
                                     {"expert_weights_scale", 1},
                                     {"expert_group_count", 1},
                                     {"logit_scale", 1},
                                     {"embedding_scale", 1},
                                     {"residual_scale", 1},
                                     {"attn_logit_softcapping", 0},
                                     {"final_logit_softcapping", 0},
                                     {"attention.scale", 0},
                                     {"attention.clamp_kqv", 0},
                                     {"attention.max_alibi_bias", 0},
                                     {"attention.temperature_scale", 0},
                                     {"attention.temperature_length", 0},
                                     {"rope.scaling.attn_factor", 1},
                                     {"rope.scaling.alpha", 0},
                                     {"rope.scaling.yarn_log_multiplier", 0},
                                     {"rope.scaling.yarn_ext_factor", 1},
                                     {"rope.scaling.yarn_attn_factor", 1},
                                     {"nextn_predict_layers", 0}};

/// Metadata of the file's own architecture, by what stands behind its name.
class Keys {
 public:
  Keys(const GgufMetadata& metadata, const GgufFamily& family)
      : metadata_(metadata), prefix_(std::string(family.architecture) + ".") {}

  std::string full(std::string_view key) const { return prefix_ + std::string(key); }
  std::int64_t require_int(std::string_view key) const {
    return metadata_.require_int(full(key), kSizes);
  }
  std::optional<std::int64_t> find_int(std::string_view key) const {
    return metadata_.find_int(full(key), kSizes);
  }
  double require_number(std::string_view key) const { return metadata_.require_number(full(key)); }
  std::optional<double> find_number(std::string_view key) const {
    return metadata_.find_number(full(key));
  }
  std::optional<std::string_view> find_string(std::string_view key) const {
    return metadata_.find_string(full(key));
  }
  [[noreturn]] void fail(std::string_view key, const std::string& expected) const {
    metadata_.fail(full(key), expected);
  }

  void refuse_unsupported() const {
    for (const Neutral& neutral : kNotSupported) {
      const auto number = find_number(neutral.key);
      if (number && *number != neutral.number) fail(neutral.key, "none (it is not supported)");
    }
    if (metadata_.find_bool(full("attention.causal")) == false) {
      fail("attention.causal", "true (only decoders are supported)");
    }
    for (const std::string_view key :
         {"rope.dimension_sections", "attention.sliding_window_pattern"}) {
      if (metadata_.has(full(key))) fail(key, "none (it is not supported)");
    }
  }

  /// Those that nothing reads, named in one line.
  std::optional<std::string> unread() const {
    std::string names;
    for (const GgufValue& value : metadata_.values()) {
      if (!value.key.starts_with(prefix_)) continue;
      const std::string_view key = value.key.substr(prefix_.size());
      const bool known =
          std::ranges::find(kRead, key) != std::end(kRead) ||
          std::ranges::find(kNotSupported, key, &Neutral::key) != std::end(kNotSupported) ||
          key == "attention.causal";
      if (!known) names += (names.empty() ? "" : ", ") + std::string(value.key);
    }
    if (names.empty()) return std::nullopt;
    return std::string(metadata_.file()) + ": is not read in " + names;
  }

 private:
  static constexpr IntRange kSizes{0, std::int64_t{1} << 31};

  const GgufMetadata& metadata_;
  std::string prefix_;
};

const TensorInfo* find(std::span<const TensorInfo> tensors, std::string_view name) {
  const auto it = std::ranges::lower_bound(tensors, name, {}, &TensorInfo::name);
  return it != tensors.end() && it->name == name ? &*it : nullptr;
}

bool any_ends_with(std::span<const TensorInfo> tensors, std::string_view suffix) {
  return std::ranges::any_of(
      tensors, [&](const TensorInfo& tensor) { return tensor.name.ends_with(suffix); });
}

/// A file that doesn't say it has heads that share the width of the model.
std::int64_t head_dim_of(const Keys& keys) {
  if (const auto head_dim = keys.find_int("attention.key_length")) return *head_dim;
  const std::int64_t dim = keys.require_int("embedding_length");
  const std::int64_t heads = keys.require_int("attention.head_count");
  if (heads < 1) keys.fail("attention.head_count", "1 or more");
  if (dim % heads != 0) {
    keys.fail("embedding_length", "a multiple of " + std::to_string(heads) + ", the heads");
  }
  return dim / heads;
}

void add_heads(const Keys& keys, Json& config) {
  const std::int64_t dim = keys.require_int("embedding_length");
  const std::int64_t heads = keys.require_int("attention.head_count");
  config["hidden_size"] = dim;
  config["num_attention_heads"] = heads;
  config["num_key_value_heads"] = keys.find_int("attention.head_count_kv").value_or(heads);
  config["head_dim"] = head_dim_of(keys);
  for (const char* key : {"attention.value_length", "rope.dimension_count"}) {
    const auto size = keys.find_int(key);
    if (size && *size != config["head_dim"].get<std::int64_t>()) {
      keys.fail(key, config["head_dim"].dump() + ", the size of a head (others are not supported)");
    }
  }
}

void add_rope(const Keys& keys, Json& config) {
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
  if (type == "yarn") {
    rope["original_max_position_embeddings"] =
        keys.require_int("rope.scaling.original_context_length");
    if (const auto fast = keys.find_number("rope.scaling.yarn_beta_fast"))
      rope["beta_fast"] = *fast;
    if (const auto slow = keys.find_number("rope.scaling.yarn_beta_slow"))
      rope["beta_slow"] = *slow;
  }
  config["rope_parameters"] = std::move(rope);
}

/// Weights of the chosen are always divided by their sum. Layers without a router are no mixtures.
void add_experts(const Keys& keys, std::span<const TensorInfo> tensors, const GgufFamily& family,
                 Json& config) {
  const char* const kCount = "expert_count";
  if (!family.experts) {
    if (keys.find_int(kCount).value_or(0) != 0) {
      keys.fail(kCount, "none (mixtures of this architecture are not supported)");
    }
    return;
  }
  config["num_experts"] = keys.require_int(kCount);
  config["num_experts_per_tok"] = keys.require_int("expert_used_count");
  config["moe_intermediate_size"] = keys.require_int("expert_feed_forward_length");
  config["norm_topk_prob"] = true;
  Json dense = Json::array();
  const std::int64_t layers = keys.require_int("block_count");
  for (std::int64_t i = 0; i < std::min(layers, std::ssize(tensors)); ++i) {
    const std::string router = "blk." + std::to_string(i) + ".ffn_gate_inp.weight";
    if (find(tensors, router) == nullptr) dense.push_back(i);
  }
  config["mlp_only_layers"] = std::move(dense);
}

/// What all values of a window are that a model has. Only a llama's is known to mean all layers.
void add_window(const Keys& keys, const GgufFamily& family, Json& config) {
  const auto window = keys.find_int("attention.sliding_window");
  if (!window || *window == 0) return;
  if (std::string_view(family.architecture) != "llama") {
    keys.fail("attention.sliding_window", "0 (which layers it is meant for is not said)");
  }
  config["model_type"] = "mistral";
  config["sliding_window"] = *window;
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

const GgufFamily& gguf_family(const GgufMetadata& metadata) {
  constexpr const char* kKey = "general.architecture";
  const std::string_view name = metadata.require_string(kKey);
  const auto* const family = std::ranges::find_if(
      kFamilies, [&](const GgufFamily& one) { return one.architecture == name; });
  if (family != std::end(kFamilies)) return *family;
  std::string all;
  for (const GgufFamily& one : kFamilies)
    all += (all.empty() ? "" : ", ") + std::string(one.architecture);
  metadata.fail(kKey, "one of " + all + " (others are not supported)");
}

std::int64_t gguf_head_dim(const GgufMetadata& metadata) {
  return head_dim_of(Keys(metadata, gguf_family(metadata)));
}

std::string gguf_config(const GgufMetadata& metadata, std::span<const TensorInfo> tensors,
                        std::vector<std::string>& warnings) {
  const GgufFamily& family = gguf_family(metadata);
  const Keys keys(metadata, family);
  keys.refuse_unsupported();
  const TensorInfo* const embedding = find(tensors, "token_embd.weight");
  if (embedding == nullptr || embedding->shape.size() != 2) {
    throw Error(std::string(metadata.file()) + ": " +
                (embedding == nullptr
                     ? "holds no tensor \"token_embd.weight\""
                     : "tensor \"token_embd.weight\" has shape " + shape_text(embedding->shape)) +
                ", expected one of [vocabulary, embedding_length]");
  }
  Json config{{"model_type", family.model_type}};
  add_heads(keys, config);
  config["intermediate_size"] = keys.require_int("feed_forward_length");
  config["num_hidden_layers"] = keys.require_int("block_count");
  config["max_position_embeddings"] = keys.require_int("context_length");
  config["vocab_size"] = embedding->shape[0];
  config["rms_norm_eps"] = keys.require_number("attention.layer_norm_rms_epsilon");
  config["tie_word_embeddings"] = find(tensors, "output.weight") == nullptr;
  config["attention_bias"] =
      any_ends_with(tensors, ".attn_q.bias") || any_ends_with(tensors, ".attn_output.bias");
  config["mlp_bias"] = any_ends_with(tensors, ".ffn_gate.bias");
  config["torch_dtype"] = dtype_of(embedding->stored_type);
  config["bos_token_id"] = token_or_null(metadata, "tokenizer.ggml.bos_token_id");
  config["eos_token_id"] = token_or_null(metadata, "tokenizer.ggml.eos_token_id");
  add_rope(keys, config);
  add_experts(keys, tensors, family, config);
  add_window(keys, family, config);
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
