#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "dendrite/dendrite.h"
#include "support/golden_data.h"
#include "support/paths.h"

namespace dendrite::test {

/// An engine over a shipped model, or one in a folder, with a pool that suits a test.
inline Engine load(const std::string& name, std::int64_t kv_tokens = 8192) {
  EngineOptions options;
  options.device = on_cuda() ? "cuda" : "cpu";
  options.threads = 1;
  options.kv_tokens = kv_tokens;
  return Engine::load(name.starts_with('/') ? name : model_path(name).string(), options);
}

/// What the Error says that this throws; empty: it throws none.
template <typename Function>
std::string error_of(const Function& function) {
  try {
    function();
    return "";
  } catch (const Error& error) {
    return error.what();
  }
}

}  // namespace dendrite::test
