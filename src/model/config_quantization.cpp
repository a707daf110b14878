#include "model/config_quantization.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

namespace dendrite {
namespace {

std::string one_of(const std::vector<std::string>& texts) {
  std::string all;
  for (const std::string& one : texts) all += (all.empty() ? "\"" : " or \"") + one + "\"";
  return all;
}

/// The text of `key`, one of these where it is there.
void check_text(const JsonObject& settings, const char* key,
                const std::vector<std::string>& expected) {
  const auto got = settings.find_string(key);
  if (!got || std::ranges::find(expected, *got) != expected.end()) return;
  settings.fail(key, one_of(expected));
}

void check_bits(const JsonObject& settings, const char* key, std::int64_t expected) {
  const auto bits = settings.find_int(key);
  if (bits && *bits != expected) {
    settings.fail(key, std::to_string(expected) + " (other numbers of bits are not supported)");
  }
}

void check_fp8(const JsonObject& settings) {
  check_text(settings, "fmt", {"e4m3"});
  const auto block = settings.find_ints("weight_block_size");
  if (block && *block != std::vector<std::int64_t>{128, 128}) {
    settings.fail("weight_block_size", "[128, 128] or null");
  }
}

/// Of gpt-oss, whose tensors tell all.
void check_mxfp4(const JsonObject&) {}

void check_awq(const JsonObject& settings) {
  check_bits(settings, "bits", 4);
  check_text(settings, "version", {"gemm", "GEMM"});
}

void check_gptq(const JsonObject& settings) {
  check_bits(settings, "bits", 4);
  check_text(settings, "checkpoint_format", {"gptq"});
}

/// How compressed-tensors stores weights, and the numbers that they are then.
struct Compressed {
  const char* format;
  std::int64_t bits;
  const char* type;
};
constexpr Compressed kCompressed[] = {
    {"float-quantized", 8, "float"},      {"int-quantized", 8, "int"},
    {"pack-quantized", 4, "int"},         {"nvfp4-pack-quantized", 4, "float"},
    {"mxfp4-pack-quantized", 4, "float"}, {"mxfp8-quantized", 8, "float"}};

void check_compressed_tensors(const JsonObject& settings) {
  std::vector<std::string> formats;
  for (const Compressed& one : kCompressed) formats.emplace_back(one.format);
  // "mixed-precision": each group says its own.
  const bool mixed = settings.find_string("format") == "mixed-precision";
  if (!mixed) check_text(settings, "format", formats);
  for (const char* key : {"sparsity_config", "transform_config"}) {
    const auto more = settings.find_object(key);
    if (more && !more->keys().empty()) settings.fail(key, "none (it is not supported)");
  }
  const auto groups = settings.find_object("config_groups");
  if (!groups) return;
  for (const std::string_view name : groups->keys()) {
    const JsonObject group = groups->require_object(name);
    check_text(group, "format", formats);
    const auto weights = group.find_object("weights");
    if (!weights) continue;
    const std::string format =
        group.find_string("format").value_or(settings.find_string("format").value_or(""));
    const auto* const numbers = std::ranges::find(kCompressed, format, &Compressed::format);
    if (numbers == std::end(kCompressed)) group.fail("format", one_of(formats));
    check_bits(*weights, "num_bits", numbers->bits);
    check_text(*weights, "type", {numbers->type});
  }
}

void check_modelopt(const JsonObject& settings) {
  const std::vector<std::string> known{"FP8", "MXFP8", "NVFP4", "W4A16_NVFP4"};
  const auto layers = settings.find_object("quantized_layers");
  if (!layers || settings.find_string("quant_algo") != "MIXED_PRECISION") {
    return check_text(settings, "quant_algo", known);
  }
  for (const std::string_view name : layers->keys()) {
    check_text(layers->require_object(name), "quant_algo", known);
  }
}

/// To support another method: a row here, and a format in src/quant.
struct Method {
  const char* name;
  void (*check)(const JsonObject& settings);
};
constexpr Method kMethods[] = {{"fp8", check_fp8},
                               {"fbgemm_fp8", check_fp8},
                               {"compressed-tensors", check_compressed_tensors},
                               {"modelopt", check_modelopt},
                               {"mxfp4", check_mxfp4},
                               {"awq", check_awq},
                               {"gptq", check_gptq}};

/// Whether a layer's inputs are rounded as its weights are, MXFP8 or NVFP4; none where its weights
/// are something else.
std::optional<bool> rounds_inputs(const std::string& algorithm) {
  if (algorithm == "W4A16_NVFP4") return false;
  if (algorithm == "MXFP8" || algorithm == "NVFP4") return true;
  return std::nullopt;
}

/// The same of a group of compressed-tensors.
std::optional<bool> rounds_inputs(const JsonObject& group) {
  const auto weights = group.find_object("weights");
  if (!weights || weights->find_string("type") != "float") return std::nullopt;
  const auto bits = weights->find_int("num_bits");
  const auto size = weights->find_int("group_size");
  const bool blocks = (bits == 8 && size == 32) || (bits == 4 && size == 16);
  if (!blocks) return std::nullopt;
  const auto inputs = group.find_object("input_activations");
  return inputs && inputs->find_string("type") == "float" && inputs->find_int("num_bits") == bits &&
         inputs->find_int("group_size") == size;
}

/// Whether some are, and none are not.
class Votes {
 public:
  void add(std::optional<bool> rounds) {
    if (rounds) (*rounds ? some_ : others_) = true;
  }
  bool all_round() const { return some_ && !others_; }

 private:
  bool some_ = false;
  bool others_ = false;
};

void add_votes(const JsonObject& settings, Votes& votes) {
  const auto groups = settings.find_object("config_groups");
  const auto layers = settings.find_object("quantized_layers");
  const auto algorithm = settings.find_string("quant_algo");
  if (algorithm && algorithm != "MIXED_PRECISION") {
    votes.add(rounds_inputs(*algorithm));
  } else if (layers) {
    for (const std::string_view name : layers->keys()) {
      const auto of_layer = layers->require_object(name).find_string("quant_algo");
      if (of_layer) votes.add(rounds_inputs(*of_layer));
    }
  } else if (groups) {
    for (const std::string_view name : groups->keys()) {
      votes.add(rounds_inputs(groups->require_object(name)));
    }
  }
}

void check_method(const JsonObject& config, const char* key) {
  const auto settings = config.find_object(key);
  if (!settings || settings->keys().empty()) return;
  const std::string name = settings->find_string("quant_method").value_or("");
  const auto* const method = std::ranges::find(kMethods, name, &Method::name);
  if (method != std::end(kMethods)) return method->check(*settings);
  std::string all;
  for (const Method& one : kMethods) all += (all.empty() ? "" : ", ") + std::string(one.name);
  settings->fail("quant_method", "one of " + all + " (others are not supported)");
}

}  // namespace

void check_quantization(const JsonObject& config) {
  check_method(config, "quantization_config");
  check_method(config, "compression_config");
}

bool keeps_fp8_inputs(const JsonObject& config) {
  for (const char* key : {"quantization_config", "compression_config"}) {
    const auto settings = config.find_object(key);
    const auto groups = settings ? settings->find_object("config_groups") : std::nullopt;
    if (!groups) continue;
    for (const std::string_view name : groups->keys()) {
      const JsonObject group = groups->require_object(name);
      const auto weights = group.find_object("weights");
      if (weights && weights->find_string("type") == "float" &&
          weights->find_int("num_bits") == 8 && !group.find_object("input_activations")) {
        return true;
      }
    }
  }
  return false;
}

bool rounds_block_inputs(const JsonObject& config) {
  Votes votes;
  for (const char* key : {"quantization_config", "compression_config", "quantization"}) {
    if (const auto settings = config.find_object(key)) add_votes(*settings, votes);
  }
  return votes.all_round();
}

void check_hf_quant_config(const JsonObject& root) {
  if (const auto settings = root.find_object("quantization")) check_modelopt(*settings);
}

}  // namespace dendrite
