#include "dendrite/build.h"
#include "dendrite/error.h"
#include "support/engine_support.h"

// EngineOptions::backend_library: the backend of a library that is opened at run time.
namespace dendrite::test {
namespace {

std::string error_of(EngineOptions options) {
  options.device = "cuda";
  try {
    load("tinyllama", options, "");
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::vector<float> scores_of(const Engine& engine) {
  Session session(engine, {.seed = 3});
  Branch root = session.prefill(std::vector<Token>{1, 5, 9, 2, 7});
  std::vector<Branch> branches = root.fork(3);
  std::vector<float> out;
  for (const Generation& generation :
       session.decode(branches, {.max_tokens = 12, .temperature = 1.0, .ignore_eos = true})) {
    for (const Token token : generation.ids) out.push_back(static_cast<float>(token));
  }
  for (const Score& score : root.score_tokens({{3, 1, 4}, {3, 1, 5}})) {
    out.insert(out.end(), score.tokens.begin(), score.tokens.end());
  }
  return out;
}

TEST(BackendLibrary, ComputesWhatTheSameBackendInsideComputes) {
  EngineOptions options;
  options.backend_library = DENDRITE_CPU_LIBRARY;
  options.device = "cuda";
  const Engine outside = load("tinyllama", options, "");
  EXPECT_EQ(outside.info().device, "cpu");
  EXPECT_TRUE(same_bits(scores_of(outside), scores_of(load("tinyllama", {}, ""))));
}

TEST(BackendLibrary, MayThrow) {  // no driver, no GPU
  const std::string error =
      error_of({.host_tables = true, .backend_library = DENDRITE_CPU_LIBRARY});
  EXPECT_EQ(error, "device cuda: no GPU found; this is a test");
}

TEST(BackendLibrary, OfAnotherBuildIsRefusedWithBothNames) {
  const std::string error = error_of({.backend_library = DENDRITE_FOREIGN_LIBRARY});
  EXPECT_NE(error.find("dendrite 0.0.1 (sources abc, GCC 1, libstdc++ 2)"), std::string::npos)
      << error;
  EXPECT_NE(error.find(build_id()), std::string::npos) << error;
}

TEST(BackendLibrary, ThatIsMissingIsNamed) {
  const std::string error = error_of({.backend_library = "/nowhere/libdendrite_cuda.so"});
  EXPECT_NE(error.find("/nowhere/libdendrite_cuda.so: cannot open"), std::string::npos) << error;
}

TEST(BackendLibrary, ThatIsAnotherLibraryIsRefused) {
  const std::string error = error_of({.backend_library = "libm.so.6"});
  EXPECT_NE(error.find("libm.so.6: it has no function dendrite_backend"), std::string::npos)
      << error;
}

TEST(BackendLibrary, GoesWithDeviceCudaAlone) {
  EXPECT_THROW(load("tinyllama", {.backend_library = DENDRITE_CPU_LIBRARY}, ""), Error);
}

#ifdef DENDRITE_CUDA_LIBRARY
TEST(BackendLibrary, OfCudaComputesWhatTheOneInsideComputes) {
  if (!on_cuda()) GTEST_SKIP() << "no GPU";
  for (const char* model : {"dendrite-24", "tinyllama"}) {
    const Engine outside = load(model, {.backend_library = DENDRITE_CUDA_LIBRARY});
    EXPECT_EQ(outside.info().device, "cuda");
    EXPECT_TRUE(same_bits(scores_of(outside), scores_of(load(model)))) << model;
  }
}
#endif

}  // namespace
}  // namespace dendrite::test
