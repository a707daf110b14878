#include "support/engine_support.h"

namespace dendrite::test {
namespace {

class HostTables : public ::testing::TestWithParam<std::string> {};
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(HostTables);  // a CPU has no others

/// Everything that branches of several sizes compute: prompts, recorded and replayed steps, a step
/// too large to record, scores.
std::vector<float> computed(const Engine& engine, std::vector<Tokens>& ids) {
  Session session(engine, {.seed = 3});
  Random random(7);
  const Tokens prompt = random.tokens(600, engine.info().vocab);
  std::vector<Branch> branches = session.prefill(std::span(prompt)).fork(9);
  for (std::size_t i = 0; i < branches.size(); ++i) {
    branches[i].append(random.tokens(random.in(1, 80), engine.info().vocab));
  }
  DecodeParams params;
  params.max_tokens = 20;
  params.temperature = 0.9;
  params.ignore_eos = true;
  for (const Generation& generation : session.decode(branches, params)) {
    ids.push_back(generation.ids);
  }
  for (Branch& branch : branches[0].fork(3)) branches.push_back(std::move(branch));
  for (const Generation& generation : session.decode(branches, params)) {
    ids.push_back(generation.ids);
  }
  std::vector<float> out = kv_of(branches[4]);
  for (const Score& score : branches[2].score_tokens({{1, 2, 3}, {1, 2, 4, 5}})) {
    out.insert(out.end(), score.tokens.begin(), score.tokens.end());
  }
  return out;
}

TEST_P(HostTables, GiveTheSameBits) {
  std::vector<Tokens> ids;
  std::vector<Tokens> host_ids;
  const std::vector<float> device = computed(load(GetParam(), {.host_tables = false}), ids);
  const std::vector<float> host = computed(load(GetParam(), {.host_tables = true}), host_ids);
  EXPECT_TRUE(same_bits(host, device));
  EXPECT_EQ(host_ids, ids);
}

INSTANTIATE_TEST_SUITE_P(Models, HostTables,
                         ::testing::ValuesIn(on_cuda()
                                                 ? std::vector<std::string>{"dendrite-24", "qwen3"}
                                                 : std::vector<std::string>{}),
                         [](const auto& info) { return "model_" + std::to_string(info.index); });

}  // namespace
}  // namespace dendrite::test
