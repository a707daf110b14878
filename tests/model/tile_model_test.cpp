// A whole model by AMX tiles and by their model in plain C++: the same bits, and snapshots of one
// are good for the other.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/engine_support.h"

namespace dendrite {
namespace {

TEST(TileModel, DecodesAsTheMachineDoes) {
  const std::vector<std::string> paths = cpu_kernel_paths();
  if (std::find(paths.begin(), paths.end(), "amx_bf16") == paths.end()) {
    GTEST_SKIP() << "this machine has no AMX, or does not grant it";
  }
  const auto load = [](const std::string& kernels) {
    return Engine::load(test::model_path("tinyllama").string(),
                        {.dtype = "bf16", .threads = 1, .kv_tokens = 2048, .kernels = kernels});
  };
  const Engine machine = load("amx_bf16");
  const Engine model = load("amx_bf16_model");
  EXPECT_EQ(machine.info().numerics_key, model.info().numerics_key);
  const auto generate = [](const Engine& engine) {
    Session session(engine, {.seed = 5});
    test::Tokens prompt(40);
    for (std::size_t i = 0; i < prompt.size(); ++i) prompt[i] = static_cast<Token>(3 + i * 7 % 90);
    Branch root = session.prefill(std::span(prompt));
    std::vector<Branch> branches = root.fork(3);
    return session.decode(branches, {.max_tokens = 24, .temperature = 0.8, .top_logprobs = 0});
  };
  const std::vector<Generation> a = generate(machine);
  const std::vector<Generation> b = generate(model);
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(a[i].ids, b[i].ids);
    ASSERT_EQ(a[i].logprobs.size(), b[i].logprobs.size());
    for (std::size_t t = 0; t < a[i].logprobs.size(); ++t) {
      EXPECT_EQ(a[i].logprobs[t].logprob, b[i].logprobs[t].logprob);
    }
  }
}

}  // namespace
}  // namespace dendrite
