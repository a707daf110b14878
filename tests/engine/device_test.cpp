// EngineOptions::device: which strings name a device, and a GPU other than the first.
#include <gtest/gtest.h>

#include <optional>
#include <thread>

#include "dendrite/error.h"
#include "support/engine_support.h"

namespace dendrite::test {
namespace {

/// What loading on a device says; "": it loads.
std::string error_on(const std::string& device) {
  return error_of(
      [&] { Engine::load(model_path("tinyllama").string(), {.device = device, .threads = 1}); });
}

TEST(DeviceOption, TakesCpuCudaAndAnIndex) {
  for (const char* device : {"", "tpu", "CUDA", "cpu:0", "cuda:", "cuda:x", "cuda:1x", "cuda:-1",
                             "cuda: 1", "cuda1", "cuda:70000"}) {
    EXPECT_EQ(error_on(device), "device is \"" + std::string(device) +
                                    "\"; expected cpu, cuda, or cuda:N for the GPU of index N");
  }
  EXPECT_EQ(error_on("cpu"), "");
}

TEST(DeviceOption, WithoutAGpuTellsWhatIsMissing) {
  if (on_cuda()) GTEST_SKIP() << "there is a GPU";
  for (const char* device : {"cuda", "cuda:0", "cuda:7"}) {
    const std::string error = error_on(device);
    EXPECT_NE(error.find("CUDA"), std::string::npos) << error;
    EXPECT_NE(error.find("device cpu"), std::string::npos) << error;
  }
}

TEST(DeviceOption, AnIndexThatIsNotThereIsRefusedWithTheNumberOfGpus) {
  if (!on_cuda()) GTEST_SKIP() << "no GPU";
  const std::string error = error_on("cuda:999");
  EXPECT_NE(error.find("device cuda:999: there "), std::string::npos) << error;
  EXPECT_NE(error.find("; expected cuda:0"), std::string::npos) << error;
}

/// The test's model on the GPU of this index; none where there are fewer.
std::optional<Engine> load_on(int index) {
  EngineOptions options;
  options.device = "cuda:" + std::to_string(index);
  options.kv_tokens = 4096;
  options.beyond_positions = true;
  try {
    return Engine::load(model_path("dendrite-24").string(), options);
  } catch (const Error& error) {
    if (std::string(error.what()).find("; expected cuda:0") == std::string::npos) throw;
    return std::nullopt;
  }
}

/// All that enters the device: prefill, steps with and without draws on the device, copies of
/// pages, scores, pages that leave in a snapshot and come back.
Tokens work_on(const Engine& engine, std::uint32_t seed) {
  Session session(engine, {.seed = seed});
  const Tokens prompt = Random(seed).tokens(45, 100);
  Branch root = session.prefill(std::span(prompt));
  std::vector<Branch> branches = root.fork(3);
  Tokens all;
  const auto decode = [&](Session& of, std::span<Branch> some) {
    for (const Generation& out :
         of.decode(some, {.max_tokens = 40, .temperature = 1.0, .ignore_eos = true})) {
      all.insert(all.end(), out.ids.begin(), out.ids.end());
    }
  };
  decode(session, branches);
  for (const Score& score : root.score_tokens({{3, 1, 4}, {3, 1, 5}})) {
    for (const float value : score.tokens) all.push_back(static_cast<Token>(value * -1e4f));
  }
  Restored restored = engine.restore(session.snapshot());
  decode(restored.session, restored.branches);
  return all;
}

TEST(DeviceOption, SeveralThreadsRunEnginesOnTwoGpus) {
  if (!on_cuda()) GTEST_SKIP() << "no GPU";
  std::optional<Engine> first = load_on(0);
  std::optional<Engine> second;
  std::thread([&] { second = load_on(1); }).join();
  if (!second) GTEST_SKIP() << "one GPU";
  EXPECT_EQ(second->info().device, "cuda");
  EXPECT_NE(second->info().device_name.find("(cuda:1)"), std::string::npos);
  if (first->info().device_name + " (cuda:1)" != second->info().device_name) {
    GTEST_SKIP() << "GPUs of two kinds, whose bits may differ";
  }
  constexpr std::uint32_t kThreads = 4;
  std::vector<Tokens> expected;
  for (std::uint32_t i = 0; i < kThreads; ++i) expected.push_back(work_on(*first, i));
  // Each thread uses both, so that whichever was current is the wrong one half of the time.
  std::vector<std::thread> threads;
  std::vector<Tokens> there(kThreads);
  std::vector<Tokens> here(kThreads);
  for (std::uint32_t i = 0; i < kThreads; ++i) {
    threads.emplace_back([&, i] {
      there[i] = work_on(*second, i);
      here[i] = work_on(*first, i);
      there[i] = work_on(*second, i);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(here, expected);
  EXPECT_EQ(there, expected);
  std::thread([&] { second.reset(); }).join();  // frees its memory on a thread that never used it
  EXPECT_EQ(work_on(*first, 1), expected[1]);
}

}  // namespace
}  // namespace dendrite::test
