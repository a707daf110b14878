#include "model/config_experts.h"

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace dendrite {
namespace {

constexpr IntRange kExperts{1, 4096};
constexpr IntRange kWidth{1, 1 << 20};

/// The key that says how many there are: `usual`, but files of transformers 5 may have the other.
const char* key_of_count(const JsonObject& json, const char* usual, const char* other) {
  return json.has(other) && !json.has(usual) ? other : usual;
}

Routing read_routing(const JsonObject& json, const char* key, std::int64_t experts,
                     std::int64_t chosen) {
  Routing routing;
  routing.experts = json.int_or(key, experts, kExperts);
  routing.chosen = json.int_or("num_experts_per_tok", chosen, kExperts);
  if (routing.chosen > routing.experts) {
    json.fail("num_experts_per_tok",
              "at most " + std::string(key) + ", " + std::to_string(routing.experts));
  }
  return routing;
}

/// Of Qwen's models.
Routing read_routing(const JsonObject& json, std::int64_t experts, std::int64_t chosen) {
  return read_routing(json, key_of_count(json, "num_experts", "num_local_experts"), experts,
                      chosen);
}

/// With a shared expert.
ExpertsSizes read_with_shared(const JsonObject& json, std::int64_t experts, std::int64_t chosen) {
  ExpertsSizes sizes;
  sizes.routing = read_routing(json, experts, chosen);
  sizes.routing.shared = SharedExpert::kGated;
  sizes.ffn_dim = json.int_or("moe_intermediate_size", 512, kWidth);
  sizes.shared_ffn_dim = json.int_or("shared_expert_intermediate_size", 512, kWidth);
  return sizes;
}

/// Layers are mixtures but for those of "mlp_only_layers" and all but every so many-th.
std::vector<bool> read_mixed(const JsonObject& json, std::int64_t layers) {
  std::vector<bool> mixed;
  const std::int64_t step = json.int_or("decoder_sparse_step", 1, {1, 1 << 20});
  for (std::int64_t i = 0; i < layers; ++i) mixed.push_back((i + 1) % step == 0);
  const auto dense = json.find_ints("mlp_only_layers", {0, layers - 1});
  for (const std::int64_t layer : dense.value_or(std::vector<std::int64_t>{})) {
    mixed[static_cast<std::size_t>(layer)] = false;
  }
  return mixed;
}

std::vector<bool> all_of(const DecoderConfig& config) {
  return std::vector<bool>(static_cast<std::size_t>(config.layers), true);
}

void set_experts(const ExpertsSizes& sizes, std::vector<bool> mixed, DecoderConfig& config) {
  config.mixed = std::move(mixed);
  if (config.mixed_layers() > 0) config.experts = sizes;
  if (config.mixed_layers() == config.layers) config.ffn_dim = sizes.ffn_dim;
}

}  // namespace

void read_qwen3_experts(const JsonObject& json, DecoderConfig& config) {
  ExpertsSizes sizes;
  sizes.routing = read_routing(json, 128, 8);
  sizes.routing.normalised = json.bool_or("norm_topk_prob", false);
  sizes.ffn_dim = json.int_or("moe_intermediate_size", 768, kWidth);
  set_experts(sizes, read_mixed(json, config.layers), config);
}

void read_mixtral_experts(const JsonObject& json, DecoderConfig& config) {
  ExpertsSizes sizes;
  const char* const key = key_of_count(json, "num_local_experts", "num_experts");
  sizes.routing = read_routing(json, key, 8, 2);
  sizes.routing.normalised = true;
  sizes.ffn_dim = config.ffn_dim;
  set_experts(sizes, all_of(config), config);
  config.expert_names = ExpertNames::kSparseMoe;
}

void read_next_experts(const JsonObject& json, DecoderConfig& config) {
  ExpertsSizes sizes = read_with_shared(json, 512, 10);
  sizes.routing.normalised = json.bool_or("norm_topk_prob", true);
  set_experts(sizes, read_mixed(json, config.layers), config);
}

void read_qwen3_5_experts(const JsonObject& json, DecoderConfig& config) {
  ExpertsSizes sizes = read_with_shared(json, 256, 8);
  sizes.routing.normalised = true;
  set_experts(sizes, all_of(config), config);
}

}  // namespace dendrite
