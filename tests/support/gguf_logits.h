#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "dendrite/dendrite.h"
#include "support/paths.h"

namespace dendrite::test {

inline EngineOptions gguf_options(const std::string& dtype) {
  EngineOptions options;
  options.dtype = dtype;
  options.kv_tokens = 2048;
  options.threads = 2;
  options.beyond_positions = true;
  if (on_cuda()) options.device = "cuda";
  return options;
}

/// The logits after some tokens that every model has.
inline std::vector<float> logits_of(const Engine& engine) {
  std::vector<Token> prompt;
  const std::int64_t vocab = std::min<std::int64_t>(engine.info().vocab, 200);
  for (std::int64_t i = 0; i < 40; ++i) {
    prompt.push_back(static_cast<Token>((i * i * 7 + i * 3 + 5) % vocab));
  }
  Session session(engine);
  Branch branch = session.prefill(prompt);
  const Distribution distribution = branch.distribution();
  return {distribution.logits().begin(), distribution.logits().end()};
}

inline void expect_same_logits(const std::string& file, const std::string& folder,
                               const std::string& dtype) {
  const auto from_file = logits_of(Engine::load(file, gguf_options(dtype)));
  const auto from_folder = logits_of(Engine::load(folder, gguf_options(dtype)));
  ASSERT_EQ(from_file.size(), from_folder.size());
  std::size_t other = 0;
  for (std::size_t i = 0; i < from_file.size(); ++i) {
    other +=
        std::bit_cast<std::uint32_t>(from_file[i]) != std::bit_cast<std::uint32_t>(from_folder[i]);
  }
  EXPECT_EQ(other, 0u) << file << " in " << dtype;
}

}  // namespace dendrite::test
