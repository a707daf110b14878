#include "model/config_quantization.h"

#include <algorithm>
#include <optional>
#include <string>
#include <vector>

namespace dendrite {
namespace {

/// The text of `key`, one of these where it is there.
void check_text(const JsonObject& settings, const char* key,
                const std::vector<std::string>& expected) {
  const auto got = settings.find_string(key);
  if (!got || std::ranges::find(expected, *got) != expected.end()) return;
  std::string all;
  for (const std::string& one : expected) all += (all.empty() ? "\"" : " or \"") + one + "\"";
  settings.fail(key, all);
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

void check_awq(const JsonObject& settings) {
  check_bits(settings, "bits", 4);
  check_text(settings, "version", {"gemm", "GEMM"});
}

void check_gptq(const JsonObject& settings) {
  check_bits(settings, "bits", 4);
  check_text(settings, "checkpoint_format", {"gptq"});
}

void check_compressed_tensors(const JsonObject& settings) {
  const std::vector<std::string> formats{"float-quantized", "int-quantized", "pack-quantized"};
  check_text(settings, "format", formats);
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
    check_bits(*weights, "num_bits", format == "pack-quantized" ? 4 : 8);
    check_text(*weights, "type", {format == "float-quantized" ? "float" : "int"});
  }
}

void check_modelopt(const JsonObject& settings) {
  check_text(settings, "quant_algo", {"FP8"});
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
                               {"awq", check_awq},
                               {"gptq", check_gptq}};

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

void check_hf_quant_config(const JsonObject& root) {
  if (const auto settings = root.find_object("quantization")) check_modelopt(*settings);
}

}  // namespace dendrite
