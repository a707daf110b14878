#pragma once

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "dendrite/types.h"
#include "io/safetensors.h"
#include "quant/formats.h"

// The references of tests/data/models; the format is described in tools/golden/README.md.
namespace dendrite::test {

inline std::filesystem::path model_data() {
  return std::filesystem::path(DENDRITE_TEST_DATA) / "models";
}

/// Where the weights of a golden are: beside it, or in models/ for a model that is shipped.
inline std::filesystem::path model_path(const std::string& name) {
  const std::filesystem::path beside = model_data() / name;
  if (std::filesystem::exists(beside / "config.json")) return beside;
  const std::filesystem::path shape = std::filesystem::path(DENDRITE_TEST_DATA) / "shapes" / name;
  if (std::filesystem::exists(shape / "config.json")) return shape;
  return std::filesystem::path(DENDRITE_MODELS_DIR) / name;
}
/// Whether a model is a shape of tests/data/shapes alone, with sizes of published models, too large
/// for weights in files: they are random.
inline bool is_shape(const std::string& name) {
  return model_path(name).parent_path().filename() == "shapes";
}

/// Whether a model has experts, which a GPU computes in bf16 alone.
inline bool is_mixture(const std::string& name) {
  std::ifstream file(model_path(name) / "config.json");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  return text.find("experts_per_tok") != text.npos ||
         text.find("\"enable_moe_block\": true") != text.npos;
}

/// A block drafter of tests/data/drafters, or in models/ one that is shipped.
inline std::filesystem::path drafter_path(const std::string& name) {
  const std::filesystem::path beside =
      std::filesystem::path(DENDRITE_TEST_DATA) / "drafters" / name;
  if (std::filesystem::exists(beside / "config.json")) return beside;
  return std::filesystem::path(DENDRITE_MODELS_DIR) / name;
}

/// Every folder of tests/data/models that holds `file`.
inline std::vector<std::string> goldens_with(const std::string& file) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(model_data())) {
    if (std::filesystem::exists(entry.path() / file)) names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

/// Tensors of a golden file, copied out.
class GoldenFile {
 public:
  explicit GoldenFile(const std::filesystem::path& path) : file_(path) {}

  std::vector<std::int32_t> ints(const std::string& name) const {
    const TensorInfo& tensor = require(name);
    if (tensor.stored_type != "I32") throw std::runtime_error(name + " is not I32");
    std::vector<std::int32_t> out(static_cast<std::size_t>(tensor.size_bytes / 4));
    std::memcpy(out.data(), tensor.data, out.size() * 4);
    return out;
  }
  std::vector<float> floats(const std::string& name) const { return numbers_of(require(name)); }
  bool has(const std::string& name) const { return file_.find(name) != nullptr; }

 private:
  const TensorInfo& require(const std::string& name) const {
    const TensorInfo* tensor = file_.find(name);
    if (tensor == nullptr) throw std::runtime_error(file_.path() + " lacks " + name);
    return *tensor;
  }

  SafetensorsFile file_;
};

/// ‖got - expected‖ / ‖expected‖
inline double distance(std::span<const float> got, std::span<const float> expected) {
  if (got.size() != expected.size()) return std::numeric_limits<double>::infinity();
  double error = 0;
  double norm = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double d = static_cast<double>(got[i]) - expected[i];
    error += d * d;
    norm += static_cast<double>(expected[i]) * expected[i];
  }
  return std::sqrt(error / norm);
}

inline nlohmann::json golden_json(const std::string& name) {
  std::ifstream in(model_data() / name / "golden.json");
  return nlohmann::json::parse(in);
}

/// Whether some layers of a golden's model are recurrent.
inline bool is_hybrid(const std::string& name) {
  const std::string arch = golden_json(name).value("arch", "");
  return arch.starts_with("qwen3_5") || arch == "qwen3_next" || arch.starts_with("lfm") ||
         arch == "granitemoehybrid" || arch == "nemotron_h" || arch == "kimi_linear";
}
/// Of ‖ours - theirs‖ / ‖theirs‖ in f32: two to four times the largest difference, which is 5.2e-6,
/// and 2.3e-5 of delta networks, which transformers computes in chunks of 64.
inline double golden_tolerance(const std::string& name) {
  const std::string arch = golden_json(name).value("arch", "");
  const bool delta = arch.starts_with("qwen3_5") || arch == "qwen3_next" || arch == "kimi_linear";
  return delta ? 6e-5 : 2e-5;
}

/// Of goldens_with("golden.json") the hybrids, or the others.
inline std::vector<std::string> goldens(bool hybrids) {
  std::vector<std::string> names = goldens_with("golden.json");
  std::erase_if(names, [&](const std::string& name) { return is_hybrid(name) != hybrids; });
  return names;
}

}  // namespace dendrite::test
