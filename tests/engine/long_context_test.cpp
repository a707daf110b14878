// A long life of a branch of recurrent layers: turns, forks of what it was, edits and evictions in
// between, with states of few branches. What it is at the end is what the plain run of its tokens
// gives, to the bit. DENDRITE_TEST_SCALE=67 (scripts/nightly.sh long): 100,000 tokens, 200 turns.
#include <gtest/gtest.h>

#include <algorithm>

#include "support/engine_support.h"

namespace dendrite {
namespace {

using test::bits_of;
using test::load;
using test::Random;
using test::replay;
using test::same_bits;
using test::scaled;
using test::Tokens;

constexpr const char* kModel = "qwen3_5";
constexpr std::int64_t kVocab = 256;

DecodeParams drawn(std::int64_t tokens) {
  return {.max_tokens = tokens, .temperature = 1, .ignore_eos = true};
}

class LongContext : public ::testing::Test {
 protected:
  const std::int64_t tokens_ = scaled(1500);
  const std::int64_t turns_ = std::min(200, scaled(30));
  const std::int64_t turn_ = tokens_ / turns_;

  /// Pages for the agent and little else, states of twelve branches.
  Engine make_engine() const {
    const EngineInfo info = load(kModel, {.weights = false}).info();
    return load(kModel, {.kv_tokens = tokens_ + tokens_ / 4,
                         .state_bytes = 12 * (info.state_bytes + 16 * info.state_token_bytes)});
  }

  /// A fork of what the agent was says something else.
  void look_back(Session& session, Branch& agent) {
    Branch other = agent.at(random_.in(1, agent.length()));
    other.append(random_.tokens(random_.in(1, 9), kVocab));
    session.decode(other, drawn(8));
    if (other.length() > 2000) return;  // as long as that takes no time
    EXPECT_TRUE(
        same_bits(bits_of(other), replay(load(kModel, {.prefix_index = false}), other.tokens())));
  }

  /// Others need pages until the agent, which does not run, has lost some.
  void take_pages(const Engine& engine, const Branch& agent) {
    const auto computed = [&] { return core_of(engine)->tree->computed(state_of(agent)->tip); };
    Session visitor(engine);
    std::vector<Branch> visitors;
    while (computed() >= agent.length() - 1) {
      ASSERT_LT(std::ssize(visitors), 1000);
      visitors.push_back(
          visitor.prefill(random_.tokens(std::min<std::int64_t>(2000, tokens_ / 4), kVocab)));
    }
  }

  Random random_{1};
};

TEST_F(LongContext, OfRecurrentLayersIsThePlainRun) {
  const Engine engine = make_engine();
  Session session(engine);
  Branch agent = session.prefill(random_.tokens(turn_, kVocab));
  std::vector<std::int64_t> ends;
  for (std::int64_t turn = 0; turn < turns_ || agent.length() < tokens_; ++turn) {
    if (turn % 3 == 2) look_back(session, agent);
    if (turn % 7 == 6) {  // the last two turns, once more
      agent = agent.at(ends[ends.size() - 2]);
      ends.resize(ends.size() - 2);
    }
    if (turn == turns_ / 3 || turn == 2 * turns_ / 3) take_pages(engine, agent);
    const std::int64_t length = (turn + 2) * tokens_ / turns_;
    agent.append(random_.tokens(turn_ / 2, kVocab));
    session.decode(agent, drawn(std::clamp(length - agent.length(), turn_ / 2, 2 * turn_)));
    ends.push_back(agent.length());
  }
  EXPECT_GE(agent.length(), tokens_);
  EXPECT_GT(session.stats().tokens_regenerated, 0);
  EXPECT_GT(engine.stats().rows_redundant, 0);  // it did come back
  RecordProperty("rows", std::to_string(engine.stats().rows));
  EXPECT_TRUE(same_bits(bits_of(agent), replay(load(kModel, {.kv_tokens = agent.length() + 64,
                                                             .prefix_index = false}),
                                               agent.tokens())));
}

}  // namespace
}  // namespace dendrite
