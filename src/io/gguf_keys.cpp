#include "io/gguf_keys.h"

#include <algorithm>
#include <iterator>

namespace dendrite {
namespace {

constexpr IntRange kSizes{0, std::int64_t{1} << 31};

/// Keys that change what is computed, unless they say this.
struct Neutral {
  std::string_view key;
  double number;
};
constexpr Neutral kNumbers[] = {{"attention.sliding_window", 0},
                                {"expert_count", 0},
                                {"expert_shared_count", 0},
                                {"expert_shared_feed_forward_length", 0},
                                {"expert_gating_func", 1},
                                {"expert_weights_scale", 1},
                                {"expert_group_count", 1},
                                {"expert_group_used_count", 1},
                                {"interleave_moe_layer_step", 1},
                                {"moe_every_n_layers", 1},
                                {"logit_scale", 1},
                                {"embedding_scale", 1},
                                {"residual_scale", 1},
                                {"attn_logit_softcapping", 0},
                                {"final_logit_softcapping", 0},
                                {"router_logit_softcapping", 0},
                                {"attention.scale", 0},
                                {"attention.output_scale", 1},
                                {"attention.value_scale", 1},
                                {"attention.clamp_kqv", 0},
                                {"attention.max_alibi_bias", 0},
                                {"attention.temperature_scale", 0},
                                {"attention.temperature_length", 0},
                                {"attention.shared_kv_layers", 0},
                                {"attention.kv_lora_rank", 0},
                                {"embedding_length_per_layer_input", 0},
                                {"full_attention_interval", 1},
                                {"ssm.inner_size", 0},
                                {"adapters.count", 0},
                                {"num_loops", 1},
                                {"rope.scaling.attn_factor", 1},
                                {"rope.scaling.alpha", 0},
                                {"rope.scaling.yarn_log_multiplier", 0},
                                {"rope.scaling.yarn_ext_factor", 1},
                                {"rope.scaling.yarn_attn_factor", 1}};

struct NeutralFlag {
  std::string_view key;
  bool flag;
};
constexpr NeutralFlag kFlags[] = {
    {"attention.causal", true}, {"expert_weights_norm", true}, {"use_parallel_residual", false}};

/// Of one meaning alone: another one than that of a file without.
constexpr std::string_view kAbsent[] = {
    "rope.dimension_sections",    "rope.freq_base_swa",         "rope.dimension_count_swa",
    "attention.key_length_swa",   "attention.value_length_swa", "attention.sliding_window_pattern",
    "attention.recurrent_layers", "attention.rope_pattern",     "deepstack_mapping",
    "swiglu_clamp_exp",           "swiglu_clamp_shexp"};

/// What other keys say, too, or what is asked of the file's tensors instead.
constexpr std::string_view kSilent[] = {"vocab_size", "rope.scaling.finetuned",
                                        "rope.scaling.original_context_length",
                                        "leading_dense_block_count"};

constexpr const char* kNone = "none (it is not supported)";

}  // namespace

std::optional<std::int64_t> GgufKeys::find_int(std::string_view key) const {
  return metadata_.find_int(taken(key), kSizes);
}

std::int64_t GgufKeys::require_int(std::string_view key) const {
  return metadata_.require_int(taken(key), kSizes);
}

std::optional<std::int64_t> GgufKeys::find_of_layers(std::string_view key) const {
  if (!is_array(key)) return find_int(key);
  return same_of(key, metadata_.find_ints(taken(key)).value_or(std::vector<std::int64_t>{}));
}

std::optional<std::int64_t> GgufKeys::find_of_some_layers(std::string_view key) const {
  if (!is_array(key)) return find_int(key);
  auto each = metadata_.find_ints(taken(key)).value_or(std::vector<std::int64_t>{});
  std::erase(each, 0);
  return same_of(key, each);
}

std::int64_t GgufKeys::same_of(std::string_view key, const std::vector<std::int64_t>& each) const {
  const bool same = !each.empty() && std::ranges::count(each, each.front()) == std::ssize(each);
  if (!same || each.front() < kSizes.min || each.front() > kSizes.max) {
    fail(key, "the same for all layers (others are not supported)");
  }
  return each.front();
}

std::vector<std::int64_t> GgufKeys::require_each(std::string_view key, std::int64_t layers) const {
  if (!is_array(key)) {
    return std::vector<std::int64_t>(static_cast<std::size_t>(layers), require_int(key));
  }
  auto each = metadata_.find_ints(taken(key)).value_or(std::vector<std::int64_t>{});
  const auto outside = [](std::int64_t n) { return n < kSizes.min || n > kSizes.max; };
  if (std::ssize(each) < layers || std::ranges::any_of(each, outside)) {
    fail(key, std::to_string(layers) + " sizes, one a layer");
  }
  each.resize(static_cast<std::size_t>(layers));
  return each;
}

std::int64_t GgufKeys::require_of_layers(std::string_view key) const {
  const auto number = find_of_layers(key);
  if (!number) fail(key, "an integer");
  return *number;
}

std::optional<double> GgufKeys::find_number(std::string_view key) const {
  return metadata_.find_number(taken(key));
}

double GgufKeys::require_number(std::string_view key) const {
  return metadata_.require_number(taken(key));
}

std::optional<bool> GgufKeys::find_bool(std::string_view key) const {
  return metadata_.find_bool(taken(key));
}

std::optional<std::string_view> GgufKeys::find_string(std::string_view key) const {
  return metadata_.find_string(taken(key));
}

std::optional<std::vector<bool>> GgufKeys::find_flags(std::string_view key,
                                                      std::int64_t layers) const {
  auto flags = metadata_.find_flags(taken(key));
  if (!flags) return flags;
  if (std::ssize(*flags) < layers) {
    fail(key, std::to_string(layers) + " values, one a layer");
  }
  flags->resize(static_cast<std::size_t>(layers));
  return flags;
}

void GgufKeys::refuse_unread() const {
  for (const Neutral& neutral : kNumbers) {
    if (is_read(neutral.key)) continue;
    if (is_array(neutral.key)) fail(neutral.key, kNone);
    const auto number = metadata_.find_number(full(neutral.key));
    if (number && *number != neutral.number) fail(neutral.key, kNone);
  }
  for (const NeutralFlag& neutral : kFlags) {
    if (is_read(neutral.key)) continue;
    const auto flag = metadata_.find_bool(full(neutral.key));
    if (flag && *flag != neutral.flag) {
      fail(neutral.key,
           neutral.flag ? "true (it is not supported otherwise)" : "false (it is not supported)");
    }
  }
  for (const std::string_view key : kAbsent) {
    if (!is_read(key) && metadata_.has(full(key))) fail(key, kNone);
  }
}

std::optional<std::string> GgufKeys::unread() const {
  std::string names;
  for (const GgufValue& value : metadata_.values()) {
    if (!value.key.starts_with(prefix_)) continue;
    const std::string_view key = value.key.substr(prefix_.size());
    const bool known = is_read(key) ||
                       std::ranges::find(kNumbers, key, &Neutral::key) != std::end(kNumbers) ||
                       std::ranges::find(kFlags, key, &NeutralFlag::key) != std::end(kFlags) ||
                       std::ranges::find(kSilent, key) != std::end(kSilent);
    if (!known) names += (names.empty() ? "" : ", ") + std::string(value.key);
  }
  if (names.empty()) return std::nullopt;
  return std::string(metadata_.file()) + ": is not read in " + names;
}

}  // namespace dendrite
