// What an engine does at load, before anybody waits for it, on a device that asks for it: its first
// passes leave no trace.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "support/engine_support.h"

namespace dendrite {
namespace {

/// Its passes of these sizes take longer at first.
class SlowAtFirst final : public test::SamplingBackend {
 public:
  SlowAtFirst(Numerics type, int threads, std::vector<std::int64_t>& rows)
      : SamplingBackend(type, threads, ""), rows_(rows) {}

  std::vector<FirstPass> first_passes() const override {
    return {{1 << 20, 1, 1}, {48, 1, 1}, {16, 16, 2}, {1, 1, 2}};
  }
  void run_pass(const PassInputs& inputs, const PassOps& ops) override {
    rows_.push_back(std::ssize(inputs.tokens));
    SamplingBackend::run_pass(inputs, ops);
  }

 private:
  std::vector<std::int64_t>& rows_;
};

Engine load_slow_at_first(std::vector<std::int64_t>& rows, bool debug = false) {
  EngineOptions options{.kv_tokens = 4096, .kv_debug = debug};
  options.threads = 1;
  return handle_of(
      load_core(test::model_path("tinyllama").string(), options, [&](Numerics type, int threads) {
        return std::make_unique<SlowAtFirst>(type, threads, rows);
      }));
}

TEST(FirstUse, IsAtLoadAndLeavesNoTrace) {
  std::vector<std::int64_t> rows;
  const Engine engine = load_slow_at_first(rows);
  // (No model takes the first of them. Behind the others come those that check moves.)
  ASSERT_GE(rows.size(), 5U);
  EXPECT_TRUE(
      std::ranges::equal(std::span(rows).first(5), std::vector<std::int64_t>{48, 16, 16, 1, 1}));
  const EngineCore& core = *core_of(engine);
  EXPECT_TRUE(core.moves_checked);
  EXPECT_EQ(core.backend->pass_counts().passes, 0);
  const KvShape& shape = core.store->shape();
  std::vector<float> k(
      static_cast<std::size_t>(shape.page_tokens * shape.kv_heads * shape.head_dim));
  std::vector<float> v(k.size());
  for (std::int32_t page = 0; page < shape.pages; ++page) {
    core.store->read(page, 0, static_cast<std::int32_t>(shape.page_tokens), k, v);
    ASSERT_EQ(std::ranges::count(k, 0.0F), std::ssize(k));
    ASSERT_EQ(std::ranges::count(v, 0.0F), std::ssize(v));
  }
  const Engine plain = test::load("tinyllama", {}, "sampling");
  const test::Tokens prompt = test::Random(3).tokens(40, 256);
  std::vector<std::vector<Token>> texts;
  for (const Engine& one : {engine, plain}) {
    Session session(one, {.seed = 1});
    Branch branch = session.prefill(prompt);
    session.decode(branch, {.max_tokens = 8, .temperature = 1, .ignore_eos = true});
    texts.push_back(branch.tokens());
  }
  EXPECT_EQ(texts[0], texts[1]);
}

TEST(FirstUse, NobodyReadsUnwrittenPagesInDebugMode) {
  std::vector<std::int64_t> rows;
  const Engine engine = load_slow_at_first(rows, true);
  EXPECT_TRUE(rows.empty());
}

}  // namespace
}  // namespace dendrite
