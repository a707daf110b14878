// Several models in one process, with one memory (Engine::load_all).
#include <gtest/gtest.h>

#include "engine/kv_pool_size.h"
#include "support/engine_support.h"

namespace dendrite::test {
namespace {

constexpr std::int64_t kMiB = std::int64_t{1} << 20;

std::vector<std::string> models() {
  const std::string folder = DENDRITE_MODELS_DIR;
  return {folder + "/dendrite-24", folder + "/dendrite-tools", folder + "/dendrite-24"};
}

/// On a CPU: passes of a GPU take more than all of such memories.
EngineOptions with_memory(std::int64_t bytes) {
  EngineOptions options;
  options.threads = 1;
  options.memory_bytes = bytes;
  return options;
}

std::int64_t pages_of(const Engine& engine) {
  return engine.info().kv_tokens * engine.info().kv_token_bytes;
}

TEST(SeveralEngines, DivideWhatWeightsLeave) {
  const std::vector<Engine> engines = Engine::load_all(models(), with_memory(256 * kMiB));
  ASSERT_EQ(engines.size(), 3U);
  std::int64_t taken = 0;
  for (const Engine& engine : engines) {
    taken += engine.info().weight_bytes + pages_of(engine);
    EXPECT_NEAR(static_cast<double>(pages_of(engine)), static_cast<double>(pages_of(engines[0])),
                static_cast<double>(kMiB));
  }
  EXPECT_LE(taken, 256 * kMiB);
  EXPECT_GT(taken, (on_cuda() ? 0 : 254) * kMiB);  // (there passes take some)
}

TEST(SeveralEngines, ComputeWhatEachDoesAlone) {
  const std::vector<Engine> engines = Engine::load_all(models(), with_memory(128 * kMiB));
  const auto draw = [](const Engine& engine) {
    Session session(engine, {.seed = 5});
    Branch branch = session.prefill("4 5 6 10\n");
    return session.decode(branch, {.max_tokens = 16, .temperature = 1.0, .ignore_eos = true}).ids;
  };
  std::vector<std::vector<Token>> drawn(engines.size());
  {
    std::vector<std::jthread> threads;
    for (std::size_t i = 0; i < engines.size(); ++i) {
      threads.emplace_back([&, i] { drawn[i] = draw(engines[i]); });
    }
  }
  for (std::size_t i = 0; i < engines.size(); ++i) {
    EXPECT_EQ(drawn[i], draw(Engine::load(models()[i], with_memory(64 * kMiB))));
  }
  EXPECT_EQ(drawn[0], drawn[2]);
  EXPECT_NE(drawn[0], drawn[1]);
}

TEST(SeveralEngines, WithoutALimitShareWhatIsFree) {
  EngineOptions options = with_memory(0);
  const std::vector<Engine> engines = Engine::load_all(models(), options);
  EXPECT_LE(pages_of(engines[0]), pages_of(Engine::load(models()[0], options)));
  EXPECT_GT(pages_of(engines[2]), 0);
}

TEST(SeveralEngines, WhatDoesNotFitIsRefused) {
  EXPECT_ERROR(Engine::load_all(models(), with_memory(10 * kMiB)), "memory_bytes is 10 MiB");
  std::int64_t weights = 0;
  for (const Engine& engine : Engine::load_all(models(), with_memory(256 * kMiB))) {
    weights += engine.info().weight_bytes;
  }
  EXPECT_ERROR(Engine::load_all(models(), with_memory(weights)), "weights take");
  EXPECT_ERROR(Engine::load_all(models(), with_memory(weights + kMiB)), "kv_tokens is automatic");
  EXPECT_ERROR(Engine::load(models()[0], with_memory(-1)), "memory_bytes is -1");
  EngineOptions options = with_memory(64 * kMiB);
  options.kv_tokens = std::int64_t{1} << 20;
  EXPECT_ERROR(Engine::load(models()[0], options), "of 64 MiB");
  options = with_memory(0);
  options.draft_model = models()[1];
  EXPECT_ERROR(Engine::load_all(models(), options), "expected no draft_model");
  EXPECT_TRUE(Engine::load_all({}, with_memory(0)).empty());
}

TEST(SeveralEngines, ADraftModelIsInTheMemory) {
  EngineOptions options = with_memory(96 * kMiB);
  options.draft_model = models()[0];
  options.draft_kv_tokens = 4096;
  const Engine engine = Engine::load(models()[0], options);
  const EngineInfo& info = engine.info();
  const std::int64_t draft = info.weight_bytes + 4096 * info.kv_token_bytes;
  EXPECT_LE(info.weight_bytes + pages_of(engine) + draft, 96 * kMiB);
  EXPECT_GT(info.weight_bytes + pages_of(engine) + draft, (on_cuda() ? 0 : 94) * kMiB);
  options.draft_kv_tokens = 0;  // half of what is left then, and all of the rest
  EXPECT_GT(pages_of(Engine::load(models()[0], options)), 24 * kMiB);
}

TEST(SeveralEngines, MemoryThatIsGivenIsFilled) {
  KvPoolWish wish;
  wish.token_bytes = 1 << 10;
  wish.weight_bytes = 1 << 20;
  wish.max_positions = 1024;
  wish.memory = {32 * kMiB << 10, 32 * kMiB << 10};
  EXPECT_EQ(pool_pages(wish) * wish.page_tokens, 4 * kMiB);  // 4 GiB
  wish.given = true;
  EXPECT_EQ(pool_pages(wish) * wish.page_tokens, 32 * kMiB);
  wish.pass_bytes = kMiB << 10;
  EXPECT_EQ(pool_pages(wish) * wish.page_tokens, 31 * kMiB);
}

}  // namespace
}  // namespace dendrite::test
