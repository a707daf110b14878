#include "support/engine_support.h"

namespace dendrite::test {
namespace {

/// All memory of a device that it still gives, but for `spared` floats.
class Hog {
 public:
  explicit Hog(Backend& backend, std::int64_t spared = 0) {
    const std::unique_ptr<Buffer> spare = backend.make_buffer(spared);
    for (std::int64_t floats = std::int64_t{1} << 36; floats >= 1 << 14; floats /= 2) {
      while (error_of([&] { held_.push_back(backend.make_buffer(floats)); }).empty()) continue;
    }
  }

 private:
  std::vector<std::unique_ptr<Buffer>> held_;
};

class DeviceMemory : public ::testing::TestWithParam<std::string> {};
// Only where it is not the host's, whose last byte nobody should take.
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(DeviceMemory);

TEST_P(DeviceMemory, RunningOutInARunIsAnErrorThatLosesNoBranch) {
  const Engine engine = load(GetParam(), {.prefix_index = false});
  Random random(1);
  const Tokens prompt = random.tokens(40, 256);
  const auto begin = [&](Session& session) {
    std::vector<Branch> branches = session.prefill(std::span(prompt)).fork(8);
    for (std::size_t i = 0; i < branches.size(); ++i) {
      branches[i].append(Random(static_cast<std::uint32_t>(i)).tokens(900, 256));
    }
    return branches;
  };
  Session session(engine);
  std::vector<Branch> branches = begin(session);
  {
    const Hog hog(*core_of(engine)->backend);
    EXPECT_ERROR(session.decode(branches, greedy(4)), "device memory");
  }
  const std::vector<Generation> got = session.decode(branches, greedy(4));
  Session other(engine);
  std::vector<Branch> others = begin(other);
  const std::vector<Generation> expected = other.decode(others, greedy(4));
  for (std::size_t i = 0; i < got.size(); ++i) EXPECT_EQ(got[i].ids, expected[i].ids);
  EXPECT_TRUE(tree_is_sound(engine, {branches, others}));
}

TEST_P(DeviceMemory, RunningOutAtLoadSaysWhatWouldHelp) {
  const Engine engine = load(GetParam());
  const Hog hog(*core_of(engine)->backend, 1 << 24);  // a context takes some
  EXPECT_ERROR(load(GetParam(), {.kv_tokens = 65536}), "kv_tokens");
}

INSTANTIATE_TEST_SUITE_P(Models, DeviceMemory,
                         ::testing::ValuesIn(on_cuda() ? std::vector<std::string>{"dendrite-24"}
                                                       : std::vector<std::string>{}),
                         [](const auto&) { return "on_cuda"; });

}  // namespace
}  // namespace dendrite::test
