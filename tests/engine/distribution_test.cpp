// Next-token distributions: what decode draws from, shared and not copied.
#include <gtest/gtest.h>

#include <thread>

#include "kv/segment.h"
#include "support/engine_support.h"

namespace dendrite {
namespace {

using test::greedy;
using test::load;
using test::logits_of;
using test::Random;
using test::same_bits;
using test::Tokens;

const LogitsRow* row_of(const Branch& branch) {
  return state_of(branch)->session->engine->tree->segment(state_of(branch)->tip)->logits.get();
}

/// Where logits come to the host, and where the device samples.
class DistributionTest : public testing::TestWithParam<bool> {
 protected:
  static Engine make(const EngineOptions& options = {}) {
    return GetParam() ? test::load_sampling("tinyllama", options) : load("tinyllama", options);
  }
};

INSTANTIATE_TEST_SUITE_P(Engines, DistributionTest, testing::Bool(), [](const auto& info) {
  return info.param ? std::string("Sampling") : std::string("Plain");
});

TEST_P(DistributionTest, IsToTheBitWhatDecodeAndScoreTell) {
  const Engine engine = make();
  const auto vocab = static_cast<Token>(engine.info().vocab);
  Session session(engine);
  for (std::uint32_t seed = 0; seed < 6; ++seed) {
    Branch branch = session.prefill(Random(seed).tokens(11 + seed, 256));
    const Distribution distribution = branch.distribution();
    ASSERT_TRUE(distribution.valid());
    EXPECT_TRUE(same_bits(distribution.logits(), logits_of(branch)));

    std::vector<Tokens> all;
    for (Token token = 0; token < vocab; ++token) all.push_back({token});
    const std::vector<Score> scores = branch.score_tokens(all);
    for (Token token = 0; token < vocab; ++token) {
      EXPECT_EQ(distribution.logprob(token), scores[static_cast<std::size_t>(token)].tokens[0]);
    }
    for (const bool penalised : {false, true}) {  // drawn on the device, and by the host
      DecodeParams params = greedy(1);
      params.temperature = 1.5;
      params.top_logprobs = vocab;
      if (penalised) params.repetition_penalty = 1.1;
      Branch walker = branch.fork();
      const ChosenToken chosen = session.decode(walker, params).logprobs.front();
      EXPECT_EQ(distribution.logprob(chosen.id), chosen.logprob);
      const std::vector<TokenLogprob> top = distribution.top(vocab);
      ASSERT_EQ(top.size(), chosen.top.size());
      for (std::size_t i = 0; i < top.size(); ++i) {
        EXPECT_EQ(top[i].id, chosen.top[i].id);
        EXPECT_EQ(top[i].logprob, chosen.top[i].logprob);
        EXPECT_EQ(top[i].logprob, distribution.logprob(top[i].id));
      }
    }
    EXPECT_EQ(distribution.top(3).size(), 3u);
    EXPECT_EQ(distribution.top(vocab + 1).size(), all.size());
  }
}

TEST_P(DistributionTest, OfManyBranchesComesInOneBatchWithoutACopy) {
  const Engine engine = make({.prefix_index = false});
  Session session(engine);
  Branch root = session.prefill(Random(1).tokens(20, 256));
  std::vector<Branch> branches = root.fork(5);
  for (std::size_t i = 1; i < branches.size(); ++i) {
    branches[i].append(Random(static_cast<std::uint32_t>(i)).tokens(3, 256));
  }
  const std::int64_t steps = session.stats().steps;
  const std::vector<Distribution> together = session.distributions(branches);
  EXPECT_EQ(session.stats().steps, steps + 1);
  ASSERT_EQ(together.size(), branches.size());
  std::vector<Branch*> pointers;
  for (std::size_t i = 0; i < branches.size(); ++i) {
    EXPECT_EQ(together[i].logits().data(), row_of(branches[i])->values.data());
    Branch alone = session.prefill(branches[i].tokens());
    EXPECT_TRUE(same_bits(together[i].logits(), alone.distribution().logits()));
    EXPECT_EQ(branches[i].finish(), Finish::kRunning);
    pointers.insert(pointers.begin(), &branches[i]);
  }
  const std::vector<Distribution> again = session.distributions(pointers);
  for (std::size_t i = 0; i < again.size(); ++i) {
    EXPECT_EQ(again[i].logits().data(), together[again.size() - 1 - i].logits().data());
    EXPECT_EQ(again[i].logprob(7), together[again.size() - 1 - i].logprob(7));
  }
  EXPECT_TRUE(session.distributions(std::span<Branch>()).empty());
}

TEST_P(DistributionTest, OutlivesBranchSessionAndEngineUnchanged) {
  Distribution kept;
  std::vector<float> logits;
  {
    const Engine engine = make();
    Session session(engine);
    {
      Branch branch = session.prefill(Random(2).tokens(9, 256));
      kept = branch.distribution();
      logits.assign(kept.logits().begin(), kept.logits().end());
    }
    Branch other = session.prefill(Random(3).tokens(9, 256));  // rows are recycled, not this one
    session.decode(other, greedy(20));
    EXPECT_TRUE(same_bits(kept.logits(), logits));
  }
  EXPECT_TRUE(same_bits(kept.logits(), logits));
  EXPECT_EQ(kept.top(1).front().logprob, kept.logprob(kept.top(1).front().id));
}

TEST_P(DistributionTest, RowsGoBackFromAnyThread) {
  const Engine engine = make({.prefix_index = false});
  Session session(engine);
  std::vector<Branch> branches;
  for (std::uint32_t i = 0; i < 8; ++i) {
    branches.push_back(session.prefill(Random(i).tokens(5, 256)));
  }
  for (int round = 0; round < 20; ++round) {
    std::vector<Distribution> all = session.distributions(branches);
    session.decode(branches, greedy(1));  // the segments let go of them
    std::vector<std::jthread> threads;
    for (Distribution& one : all) {
      threads.emplace_back([mine = std::move(one)]() mutable { mine = {}; });
    }
    session.decode(branches, greedy(1));
  }
}

TEST_P(DistributionTest, IsNotValidWhereItMayNotBeComputed) {
  const Engine engine = make({.kv_tokens = 64, .prefix_index = false});
  Session session(engine, {.budget = {.tokens = 10}});
  Branch computed = session.prefill(Random(1).tokens(10, 256));
  Branch branch = computed.fork();
  branch.append(Tokens{1});
  Distribution none = branch.distribution();
  EXPECT_FALSE(none.valid());
  EXPECT_TRUE(none.logits().empty());
  EXPECT_EQ(branch.finish(), Finish::kBudget);
  EXPECT_ERROR(none.logprob(1), "logprob: the distribution is not valid");
  EXPECT_ERROR(none.top(1), "top: the distribution is not valid");
  EXPECT_TRUE(computed.distribution().valid());  // known already: costs nothing

  Session other(engine);
  Branch long_one = other.prefill(Random(2).tokens(60, 256));
  long_one.append(Random(3).tokens(40, 256));
  EXPECT_FALSE(long_one.distribution().valid());  // more pages than there are
  EXPECT_EQ(long_one.finish(), Finish::kBudget);

  Branch late = other.prefill(Random(4).tokens(4, 256));
  late.append(Tokens{5});
  std::stop_source cancel;
  cancel.request_stop();
  EXPECT_FALSE(other.distributions(std::span(&late, 1), cancel.get_token()).front().valid());
  EXPECT_EQ(late.finish(), Finish::kCancelled);
  EXPECT_TRUE(late.distribution().valid());
}

TEST(Distribution, RefusesWhatItDoesNotHave) {
  Session session(load("tinyllama"));
  Branch branch = session.prefill(Random(1).tokens(4, 256));
  const Distribution distribution = branch.distribution();
  EXPECT_ERROR(distribution.logprob(320), "logprob: token is 320; expected 0 to 319");
  EXPECT_ERROR(distribution.logprob(-1), "logprob: token is -1");
  EXPECT_ERROR(distribution.top(-2), "top: n is -2; expected >= 0");
  EXPECT_TRUE(distribution.top(0).empty());
  branch.prune();
  EXPECT_ERROR(branch.distribution(), "distribution: the branch is empty");
}

}  // namespace
}  // namespace dendrite
