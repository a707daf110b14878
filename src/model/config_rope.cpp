#include "model/config_rope.h"

#include <numeric>
#include <optional>
#include <string>
#include <vector>

namespace dendrite {
namespace {

constexpr NumberRange kThetaRange{1.0, 1e15};
constexpr NumberRange kFactorRange{1e-6, 1e9};
constexpr NumberRange kScaleRange{0.0, 1e6};
constexpr IntRange kPositionRange{1, std::int64_t{1} << 30};
constexpr std::int64_t kMostSections = 1 << 16;
constexpr std::int64_t kPhiPositions = 4096;  // original ones where a file does not say

constexpr RopeType kTypes[] = {RopeType::kDefault, RopeType::kLinear, RopeType::kDynamic,
                               RopeType::kYarn,    RopeType::kLlama3, RopeType::kProportional};
constexpr const char* kFull = "full_attention";
constexpr const char* kSliding = "sliding_attention";

/// The object that holds the scaling. As in transformers, "rope_scaling" counts if it is not empty.
std::optional<JsonObject> scaling_object(const JsonObject& config) {
  if (auto legacy = config.find_object("rope_scaling"); legacy && !legacy->keys().empty())
    return legacy;
  return config.find_object("rope_parameters");
}

/// "rope_type", or "type" where that is missing.
RopeType read_type(const JsonObject& rope) {
  const char* const key = rope.contains("rope_type") ? "rope_type" : "type";
  if (!rope.contains(key)) return RopeType::kDefault;
  const std::string name = rope.require_string(key);
  for (const RopeType type : kTypes) {
    if (name == name_of(type)) return type;
  }
  rope.fail(key,
            "\"default\", \"linear\", \"dynamic\", \"yarn\", \"llama3\" or \"proportional\" (other "
            "RoPE types are not supported)");
}

void refuse_partial_rotation(const JsonObject& object) {
  const auto part = object.find_number("partial_rotary_factor");
  if (part && *part != 1.0)
    object.fail("partial_rotary_factor", "1 (RoPE over a part of the head is not supported)");
}

void refuse_table_per_layer_kind(const JsonObject& rope) {
  for (const char* kind : {kFull, kSliding}) {
    if (rope.contains(kind))
      rope.fail(kind, "no such key (a RoPE table per layer kind is not supported)");
  }
}

/// A number of YaRN for which 0 and null mean the default.
double number_or_default(const JsonObject& rope, const char* key, double fallback) {
  const double value = rope.find_number(key, kScaleRange).value_or(0.0);
  return value == 0.0 ? fallback : value;
}

void read_yarn(const JsonObject& rope, std::int64_t max_positions, RopeConfig& out) {
  if (!rope.contains("factor")) rope.fail("factor", "a number (YaRN needs it)");
  // null: the ratio of the lengths, as some checkpoints mean it
  out.factor = rope.find_number("factor", kFactorRange)
                   .value_or(static_cast<double>(max_positions) /
                             static_cast<double>(out.original_positions));
  if (out.theta == 1.0) rope.fail("rope_theta", "a number above 1 (YaRN takes its logarithm)");
  out.attention_factor = rope.find_number("attention_factor", kScaleRange);
  out.mscale = number_or_default(rope, "mscale", 0.0);
  out.mscale_all_dim = number_or_default(rope, "mscale_all_dim", 0.0);
  out.beta_fast = number_or_default(rope, "beta_fast", 32.0);
  out.beta_slow = number_or_default(rope, "beta_slow", 1.0);
  out.truncate = rope.bool_or("truncate", true);
}

void read_llama3(const JsonObject& rope, RopeConfig& out) {
  out.factor = rope.require_number("factor", kFactorRange);
  out.low_freq_factor = rope.require_number("low_freq_factor", kFactorRange);
  out.high_freq_factor = rope.require_number("high_freq_factor", kFactorRange);
  if (out.high_freq_factor < out.low_freq_factor) {
    rope.fail("high_freq_factor",
              "at least low_freq_factor, " + std::to_string(out.low_freq_factor));
  }
}

/// `rope`: the object that says how; none: it is plain. `theta`: where the object says none.
RopeConfig read_scaling(const JsonObject& config, const std::optional<JsonObject>& rope,
                        std::int64_t max_positions, std::int64_t rotary_dim, double theta) {
  RopeConfig out;
  out.max_positions = out.original_positions = max_positions;
  out.theta = theta;
  if (!rope) return out;
  out.type = read_type(*rope);
  out.theta = rope->number_or("rope_theta", out.theta, kThetaRange);
  if (out.type == RopeType::kYarn || out.type == RopeType::kLlama3) {
    // Written beside the object by some checkpoints, and then that one counts.
    const JsonObject& place = config.has("original_max_position_embeddings") ? config : *rope;
    out.original_positions =
        place.int_or("original_max_position_embeddings", max_positions, kPositionRange);
  }
  switch (out.type) {
    case RopeType::kDefault:
    case RopeType::kFactors:   // no config.json says so
    case RopeType::kLongRope:  // read_longrope does
      break;
    case RopeType::kLinear:
      out.factor = rope->require_number("factor", kFactorRange);
      break;
    case RopeType::kProportional:
      out.factor = rope->number_or("factor", out.factor, kFactorRange);
      out.rotated_part = rope->number_or("partial_rotary_factor", out.rotated_part, {0.0, 1.0});
      break;
    case RopeType::kDynamic:
      out.factor = rope->require_number("factor", kFactorRange);
      if (rotary_dim <= 2)
        config.fail("head_dim", "more than 2 (dynamic RoPE divides by head_dim - 2)");
      break;
    case RopeType::kYarn:
      read_yarn(*rope, max_positions, out);
      break;
    case RopeType::kLlama3:
      read_llama3(*rope, out);
      break;
  }
  return out;
}

}  // namespace

std::int64_t read_rotary_dim(const JsonObject& config, std::int64_t head_dim, double missing) {
  const char* const key = "partial_rotary_factor";
  const auto rope = scaling_object(config);
  const JsonObject& place = rope && rope->contains(key) ? *rope : config;
  const double factor = place.number_or(key, missing, {0.0, 1.0});
  const auto dim = static_cast<std::int64_t>(static_cast<double>(head_dim) * factor);
  if (dim < 2 || dim % 2 != 0) {
    place.fail(key, "one that makes an even number of dims, 2 or more, of head_dim " +
                        std::to_string(head_dim) + " (it makes " + std::to_string(dim) + ")");
  }
  const auto sections = rope ? rope->find_ints("mrope_section", {0, kMostSections}) : std::nullopt;
  if (sections && (sections->size() != 3 || std::accumulate(sections->begin(), sections->end(),
                                                            std::int64_t{0}) != dim / 2)) {
    rope->fail("mrope_section", "three numbers that add up to " + std::to_string(dim / 2) +
                                    ", the pairs that are rotated");
  }
  return dim;
}

RopeConfig read_rope(const JsonObject& config, std::int64_t max_positions, std::int64_t head_dim,
                     std::int64_t rotary_dim, double theta) {
  const bool whole = rotary_dim == head_dim;
  if (whole) refuse_partial_rotation(config);
  const double at_top = config.number_or("rope_theta", theta, kThetaRange);
  const auto rope = scaling_object(config);
  if (rope) {
    refuse_table_per_layer_kind(*rope);
    if (whole && read_type(*rope) != RopeType::kProportional) refuse_partial_rotation(*rope);
  }
  return read_scaling(config, rope, max_positions, rotary_dim, at_top);
}

LayerRopes read_layer_ropes(const JsonObject& config, std::int64_t max_positions,
                            std::int64_t head_dim, double theta, double local_theta,
                            const char* local_key) {
  const double full = config.number_or("rope_theta", theta, kThetaRange);
  const double local =
      local_key == nullptr ? local_theta : config.number_or(local_key, local_theta, kThetaRange);
  const auto all = scaling_object(config);
  const bool by_kind = all && (all->contains(kFull) || all->contains(kSliding));
  const auto of_kind = [&](const char* kind) {
    const auto rope = by_kind ? all->find_object(kind) : std::nullopt;
    if (rope && read_type(*rope) != RopeType::kProportional) refuse_partial_rotation(*rope);
    return rope;
  };
  return {read_scaling(config, by_kind ? of_kind(kFull) : all, max_positions, head_dim, full),
          read_scaling(config, of_kind(kSliding), max_positions, head_dim, local)};
}

RopeConfig read_longrope(const JsonObject& config, std::int64_t max_positions,
                         std::int64_t rotary_dim) {
  RopeConfig out;
  out.max_positions = max_positions;
  out.original_positions =
      config.int_or("original_max_position_embeddings", kPhiPositions, kPositionRange);
  out.theta = config.number_or("rope_theta", out.theta, kThetaRange);
  const auto rope = scaling_object(config);
  if (!rope) return out;
  out.theta = rope->number_or("rope_theta", out.theta, kThetaRange);
  const char* const key = rope->contains("rope_type") ? "rope_type" : "type";
  const std::string name = rope->find_string(key).value_or("default");
  if (name == "default") return out;
  if (name != "longrope" && name != "su" && name != "yarn") {
    rope->fail(key, "\"default\" or \"longrope\" (other RoPE types are not supported here)");
  }
  out.type = RopeType::kLongRope;
  const std::vector<double> factors = rope->require_numbers("short_factor", kFactorRange);
  if (std::ssize(factors) != rotary_dim / 2) {
    rope->fail("short_factor",
               std::to_string(rotary_dim / 2) + " numbers, one a pair that is rotated");
  }
  out.factors.assign(factors.begin(), factors.end());
  out.factor = rope->find_number("factor", kFactorRange)
                   .value_or(static_cast<double>(max_positions) /
                             static_cast<double>(out.original_positions));
  out.attention_factor = rope->find_number("attention_factor", kScaleRange);
  return out;
}

std::vector<bool> read_unrotated(const JsonObject& config, std::int64_t layers) {
  const char* const key = "no_rope_layers";  // 1: with RoPE
  const auto rotated = config.find_ints(key, {0, 1});
  const bool says = rotated && !rotated->empty();
  if (says && std::ssize(*rotated) != layers) {
    config.fail(key, "one for each of num_hidden_layers, " + std::to_string(layers));
  }
  const std::int64_t step = config.int_or("no_rope_layer_interval", 4, {1, 1 << 20});
  std::vector<bool> unrotated;
  for (std::int64_t i = 0; i < layers; ++i) {
    const bool is_rotated =
        says ? (*rotated)[static_cast<std::size_t>(i)] == 1 : (i + 1) % step != 0;
    unrotated.push_back(!is_rotated);
  }
  return unrotated;
}

std::optional<QueryGrowth> read_query_growth(const JsonObject& config) {
  const auto rope = scaling_object(config);
  if (!rope || !rope->has("llama_4_scaling_beta")) return std::nullopt;
  QueryGrowth growth;
  growth.beta = rope->require_number("llama_4_scaling_beta", kScaleRange);
  growth.length = rope->require_int("original_max_position_embeddings", kPositionRange);
  return growth;
}

}  // namespace dendrite
