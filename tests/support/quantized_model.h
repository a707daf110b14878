#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "io/model_folder.h"
#include "quant/formats.h"
#include "support/engine_support.h"
#include "support/temporary_folder.h"

namespace dendrite::test {

namespace fs = std::filesystem;

/// What is in a folder, hidden names too.
inline std::vector<std::string> names_in(const fs::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::ranges::sort(names);
  return names;
}

inline nlohmann::json config_of(const fs::path& folder) {
  return nlohmann::json::parse(std::ifstream(folder / "config.json"));
}

/// |after - before|^2 / |before|^2
inline double error_of(const StoredMatrix& before, const StoredMatrix& after) {
  std::vector<float> was(static_cast<std::size_t>(before.cols));
  std::vector<float> is(was.size());
  double error = 0;
  double power = 0;
  for (std::int64_t r = 0; r < before.rows; ++r) {
    before.format->widen(before, r, 0, was);
    after.format->widen(after, r, 0, is);
    for (std::size_t k = 0; k < was.size(); ++k) {
      error += std::pow(is[k] - was[k], 2);
      power += std::pow(was[k], 2);
    }
  }
  return error / power;
}

inline const std::vector<Tokens> kPrompts{{3, 1, 4, 1, 5, 9, 2, 6}};

/// Behind each of some prompts, one after the other.
inline std::vector<float> logits_of(const fs::path& model,
                                    const std::vector<Tokens>& prompts = kPrompts,
                                    const char* quantization = "") {
  const Engine engine = Engine::load(model.string(), {.dtype = "f32",
                                                      .quantization = quantization,
                                                      .threads = 1,
                                                      .kv_tokens = 1024,
                                                      .prefix_index = false});
  Session session(engine);
  std::vector<float> out;
  for (const Tokens& prompt : prompts) {
    Branch branch = session.prefill(std::span<const Token>(prompt));
    const Distribution next = branch.distribution();
    out.insert(out.end(), next.logits().begin(), next.logits().end());
  }
  return out;
}

/// |a - b| / |b|
inline double distance(const std::vector<float>& a, const std::vector<float>& b) {
  double off = 0;
  double length = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    off += std::pow(a[i] - b[i], 2);
    length += std::pow(b[i], 2);
  }
  return std::sqrt(off / length);
}

struct QuantizeCase {
  const char* format;
  const char* stored;  // as Dendrite names it
  double most;         // of error_of
};

inline const QuantizeCase kQuantizeCases[] = {
    {"fp8", "fp8", 8e-4}, {"int8", "int8", 1e-4}, {"int4", "int4", 1.5e-2}};

class Quantize : public testing::Test {
 protected:
  fs::path out() const { return folder_.path() / "out"; }
  TemporaryFolder folder_;
};

}  // namespace dendrite::test
