// Where a device cannot take its fast way, the engine says so, and counts.
#include "support/engine_support.h"
#include "support/tiny_model.h"

namespace dendrite {
namespace {

TEST(PassKinds, ASlowOneIsToldOnceAtLoad) {
  const auto load = [](const std::string& slow) {
    EngineOptions options;
    options.kv_tokens = 1024;
    options.threads = 1;
    return handle_of(
        load_core(test::model_path("tinyllama").string(), options, [&](Numerics type, int threads) {
          auto backend = std::make_unique<test::SamplingBackend>(type, threads, "");
          if (!slow.empty()) {
            backend->slow_kind = {"simt: " + slow, "none: " + slow, slow};
          }
          return backend;
        }));
  };
  const EngineInfo fast = load("").info();
  EXPECT_EQ(fast.attention, fast.kernels);
  EXPECT_EQ(fast.graphs, "");
  const EngineInfo slow = load("compute type f32").info();
  EXPECT_EQ(slow.attention, "simt: compute type f32");
  EXPECT_EQ(slow.graphs, "none: compute type f32");
  ASSERT_EQ(slow.warnings.size(), fast.warnings.size() + 1);
  EXPECT_NE(slow.warnings.back().find("(compute type f32)"), std::string::npos);
}

TEST(PassKinds, PassesAreCountedByTheirWay) {
  const Engine engine = test::load("tinyllama", {.dtype = "f32"});
  Session session(engine);
  Branch branch = session.prefill(std::span<const Token>(test::Random(1).tokens(40, 256)));
  session.decode(branch, test::greedy(4));
  const EngineStats stats = engine.stats();
  EXPECT_GE(stats.passes, stats.steps);
  // A GPU has neither graphs nor tensor cores for f32; a CPU has none to count.
  const bool cuda = test::on_cuda();
  EXPECT_EQ(stats.passes_without_tensor_cores, cuda ? stats.passes : 0);
  if (test::test_device() != "sampling") {
    EXPECT_EQ(stats.passes_without_graph, cuda ? stats.passes : 0);
  }
  EXPECT_EQ(engine.info().warnings.empty(), !cuda);
}

TEST(PassKinds, TensorCoresAndGraphsAreWhatAGpuTakesInBF16) {
  if (!test::on_cuda()) GTEST_SKIP() << "a GPU's";
  const test::TinyModel capped({"gemma2", 256, 4, 2});
  for (const std::string& model : {std::string("dendrite-24"), capped.path()}) {
    SCOPED_TRACE(model);
    const Engine engine = test::load(model, {.dtype = "bf16"});
    EXPECT_EQ(engine.info().attention, "tensor cores");
    EXPECT_EQ(engine.info().graphs, "passes of up to 256 rows");
    Session session(engine);
    Branch branch = session.prefill(std::span<const Token>(test::Random(1).tokens(40, 20)));
    session.decode(branch, test::greedy(8));
    EXPECT_EQ(engine.stats().passes_without_tensor_cores, 0);
    EXPECT_EQ(engine.stats().passes_without_graph, 0);
  }
}

}  // namespace
}  // namespace dendrite
