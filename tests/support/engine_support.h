#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "backend/backend.h"
#include "dendrite/dendrite.h"
#include "engine/branches/branch_state.h"
#include "engine/branches/engine_core.h"
#include "engine/branches/internals.h"
#include "engine/branches/session_core.h"
#include "support/golden_data.h"
#include "support/paths.h"
#include "support/sampling_backend.h"

// What tests of whole engines over tiny models share: raw logits, K and V bytes, replays.
namespace dendrite::test {

using Tokens = std::vector<Token>;

/// Iterations of a random test: DENDRITE_TEST_SCALE times the usual number.
inline int scaled(int usual) {
  const char* scale = std::getenv("DENDRITE_TEST_SCALE");
  return scale == nullptr ? usual : std::max(1, static_cast<int>(usual * std::atof(scale)));
}

/// Of the types of a case, "bf16" or "bf16_fp8": EngineOptions::dtype and kv_dtype.
inline std::string dtype_of(const std::string& types) {
  return types.substr(0, types.find('_'));
}
inline std::string kv_dtype_of(const std::string& types) {
  return types.ends_with("_fp8") ? "fp8" : "auto";
}

/// Whether a model is a mixture of types that the tests' device does not compute.
inline bool lacks_experts(const std::string& model, const std::string& types) {
  return on_cuda() && is_mixture(model) && dtype_of(types) != "bf16";
}

/// EngineOptions::devices of so many ranks that share one.
inline std::vector<int> ranks_on_one(int ranks) {
  return std::vector<int>(static_cast<std::size_t>(ranks));
}

/// Sizes that a model's pages may have.
inline std::vector<int> page_sizes(const std::string& model) {
  if (model.starts_with("qwen3_5") || model == "qwen3_next" || model.starts_with("lfm") ||
      model.starts_with("granitemoehybrid") || model.starts_with("nemotron_h") ||
      model == "kimi_linear")
    return {16};  // its recurrent layers go by chunks of 16
  return {8, 16, 32};
}

/// An engine over a model of tests/data/models (or models/), with a pool that suits a test.
/// `device`: "" (the CPU), "cuda" or "sampling".
inline Engine load(const std::string& name, EngineOptions options = {},
                   const std::string& device = test_device()) {
  if (options.kv_tokens == 0) options.kv_tokens = 16384;
  if (options.threads == 0) options.threads = 1;
  // (Tiny models have few positions; what tests compare with one another needs no sense.)
  options.beyond_positions = true;
  if (is_shape(name)) options.load_format = "dummy";
  const std::string path = model_path(name).string();
  if (device == "sampling") {
    return handle_of(load_core(path, options, [&](Numerics type, int threads) {
      return std::make_unique<SamplingBackend>(type, threads, options.kernels);
    }));
  }
  if (device == "cuda") {
    options.device = "cuda";
    options.kernels.clear();
  }
  return Engine::load(path, options);
}

/// The same where the device samples.
inline Engine load_sampling(const std::string& name, EngineOptions options = {}) {
  return load(name, std::move(options), on_cuda() ? "cuda" : "sampling");
}

/// Branches that end soon: afterwards an engine expects of others that they take few pages, and
/// lets more in than its pool will hold.
inline void expect_short_texts(Session& session) {
  const Tokens prompt(1, 1);
  for (int i = 0; i < 8; ++i) {
    Branch branch = session.prefill(std::span(prompt));
    session.decode(branch, {.max_tokens = 1, .temperature = 0});
  }
}

class Random {
 public:
  explicit Random(std::uint32_t seed) : engine_(seed) {}
  /// 0 to n - 1
  std::int64_t below(std::int64_t n) {
    return std::uniform_int_distribution<std::int64_t>(0, n - 1)(engine_);
  }
  std::int64_t in(std::int64_t low, std::int64_t high) { return low + below(high - low + 1); }
  bool one_in(std::int64_t n) { return below(n) == 0; }
  Tokens tokens(std::int64_t count, std::int64_t vocab) {
    Tokens out;
    for (std::int64_t i = 0; i < count; ++i) out.push_back(static_cast<Token>(below(vocab)));
    return out;
  }

 private:
  std::mt19937 engine_;
};

inline Tokens joined(Tokens a, std::span<const Token> b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

/// The next-token logits of a branch, whose tokens are all computed afterwards.
inline std::vector<float> logits_of(Branch& branch) {
  const auto& tree = *state_of(branch)->session->engine->tree;
  const Tip& tip = state_of(branch)->tip;
  if (tree.segment(tip)->logits == nullptr || tree.computed(tip) < tree.length(tip)) {
    branch.score_tokens({{0}});
  }
  const auto logits = tree.segment(state_of(branch)->tip)->logits;
  return logits == nullptr ? std::vector<float>() : logits->values;
}

/// K, then V, of positions [0, end) in all layers, as the branch reads them through its page table.
inline std::vector<float> kv_of(Branch& branch, std::int64_t end = -1) {
  EngineCore& engine = *state_of(branch)->session->engine;
  const KvShape& shape = engine.store->shape();
  if (end < 0) end = engine.tree->computed(state_of(branch)->tip);
  const auto table = engine.tree->table(state_of(branch)->tip);
  std::vector<float> out;
  for (std::int64_t layer = 0; layer < shape.all_layers(); ++layer) {
    const auto slot = static_cast<std::size_t>(shape.of(layer).values());
    std::vector<float> k(slot * static_cast<std::size_t>(shape.page_tokens));
    std::vector<float> v(k.size());
    for (std::int64_t at = 0; at < end; at += shape.page_tokens) {
      const std::int64_t count = std::min(shape.page_tokens, end - at);
      const auto values = slot * static_cast<std::size_t>(count);
      engine.store->read(table[static_cast<std::size_t>(at / shape.page_tokens)], layer,
                         static_cast<std::int32_t>(count), std::span(k).first(values),
                         std::span(v).first(values));
      // Token by token, so that the result does not depend on the page size.
      for (std::size_t i = 0; i < values; i += slot) {
        out.insert(out.end(), k.begin() + static_cast<std::ptrdiff_t>(i),
                   k.begin() + static_cast<std::ptrdiff_t>(i + slot));
        out.insert(out.end(), v.begin() + static_cast<std::ptrdiff_t>(i),
                   v.begin() + static_cast<std::ptrdiff_t>(i + slot));
      }
    }
  }
  return out;
}

/// Equal to the last bit, and not NaN.
inline ::testing::AssertionResult same_bits(std::span<const float> got,
                                            std::span<const float> expected) {
  if (got.size() != expected.size() || expected.empty()) {
    return ::testing::AssertionFailure() << got.size() << " values, expected " << expected.size();
  }
  std::size_t different = 0;
  std::size_t first = 0;
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    if (std::memcmp(&got[i], &expected[i], 4) == 0 && !std::isnan(got[i])) continue;
    if (different++ == 0) first = i;
    worst = std::max(worst, std::abs(static_cast<double>(got[i]) - expected[i]));
  }
  if (different == 0) return ::testing::AssertionSuccess();
  return ::testing::AssertionFailure()
         << different << " of " << got.size() << " values differ, first " << first << ": "
         << got[first] << " against " << expected[first] << ", by at most " << worst;
}

/// What a branch is, to the bit.
struct Bits {
  std::vector<float> logits;
  std::vector<float> kv;
};

inline Bits bits_of(Branch& branch) {
  Bits bits{logits_of(branch), {}};
  bits.kv = kv_of(branch);
  return bits;
}

/// The same tokens, prefilled from scratch by an engine that does nothing else. Requires: no prefix
/// index.
inline Bits replay(const Engine& engine, const Tokens& tokens) {
  EXPECT_EQ(core_of(engine)->prefix_index, nullptr);
  Session session(engine);
  EXPECT_EQ(session.stats().pages_used, 0);
  Branch branch = session.prefill(std::span(tokens));
  return bits_of(branch);
}

inline ::testing::AssertionResult same_bits(const Bits& got, const Bits& expected) {
  if (auto result = same_bits(got.logits, expected.logits); !result) return result << " (logits)";
  if (auto result = same_bits(got.kv, expected.kv); !result) return result << " (K and V)";
  return ::testing::AssertionSuccess();
}

/// The tree's invariants, against all live branches of the spans and the prefix index.
inline ::testing::AssertionResult tree_is_sound(const Engine& engine,
                                                std::initializer_list<std::span<Branch>> branches) {
  EngineCore& core = *core_of(engine);
  std::vector<const Tip*> tips;
  for (const std::span<Branch> some : branches) {
    for (const Branch& branch : some) {
      if (branch.valid()) tips.push_back(&state_of(branch)->tip);
    }
  }
  core.memories().collect_tips(tips);
  try {
    core.tree->check_invariants(tips);
    if (core.prefix_index != nullptr) core.prefix_index->check_invariants();
  } catch (const std::exception& error) {
    return ::testing::AssertionFailure() << error.what();
  }
  return ::testing::AssertionSuccess();
}

/// With the prefix index cleared, no page is held.
inline void expect_all_pages_free(const Engine& engine) {
  core_of(engine)->memories().clear();
  EXPECT_EQ(core_of(engine)->tree->pool().used_pages(), 0);
  EXPECT_EQ(core_of(engine)->tree->stats().segments, 0);
}

/// The likeliest token each time, end of sequence or not.
inline DecodeParams greedy(std::int64_t max_tokens) {
  DecodeParams params;
  params.max_tokens = max_tokens;
  params.temperature = 0;
  params.ignore_eos = true;
  return params;
}

/// The same tokens, text, ends and log-probs.
inline void expect_same(const std::vector<Generation>& got,
                        const std::vector<Generation>& expected) {
  ASSERT_EQ(got.size(), expected.size());
  for (std::size_t i = 0; i < got.size(); ++i) {
    EXPECT_EQ(got[i].ids, expected[i].ids) << i;
    EXPECT_EQ(got[i].text, expected[i].text) << i;
    EXPECT_EQ(got[i].finish, expected[i].finish) << i;
    ASSERT_EQ(got[i].logprobs.size(), expected[i].logprobs.size());
    for (std::size_t t = 0; t < got[i].logprobs.size(); ++t) {
      EXPECT_EQ(got[i].logprobs[t].logprob, expected[i].logprobs[t].logprob);
      EXPECT_EQ(got[i].logprobs[t].top.size(), expected[i].logprobs[t].top.size());
    }
  }
}

/// The text of the Error that `fn` throws, "" if it throws none.
template <typename Fn>
std::string error_of(Fn fn) {
  try {
    fn();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace dendrite::test

#define EXPECT_ERROR(expression, part)                                                           \
  do {                                                                                           \
    const std::string text_of_error = ::dendrite::test::error_of([&] { (void)(expression); });   \
    EXPECT_NE(text_of_error.find(part), std::string::npos) << "the error is: " << text_of_error; \
  } while (false)
