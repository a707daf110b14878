// Forks that stand after the same text have one draft: its rows are computed once, and each goes
// its own way through it.
#include <gtest/gtest.h>

#include "support/scripted_drafter.h"

namespace dendrite {
namespace {

using test::KnownTexts;
using test::scripted;
using test::ScriptedDraft;
using test::ScriptedLane;
using test::Tokens;

constexpr std::int64_t kVocab = 320;

class SharedDraftTest : public ::testing::TestWithParam<const char*> {
 protected:
  static Engine load() {
    const bool on_cuda = std::string(GetParam()) == "sampling" && test::on_cuda();
    return test::load("qwen3", {.prefix_index = false}, on_cuda ? "cuda" : GetParam());
  }

  struct Result {
    std::vector<Generation> outs;
    std::vector<std::vector<float>> kv;
    Stats stats;
  };

  /// Forks of a branch that has said something: its last token is not computed yet.
  Result decode(const DecodeParams& params, int count, bool is_constrained = false) {
    Session session(engine_, {.seed = 7});
    Branch root = session.prefill(std::span<const Token>(test::Random(3).tokens(20, kVocab)));
    DecodeParams first = params;
    first.max_tokens = 3;
    first.speculate = Speculate::kOff;
    if (is_constrained) root.constrain(Constraint::regex("[a-f0-9 ]{200}"));
    session.decode(root, first);
    std::vector<Branch> branches = root.fork(count);
    Result result{.outs = session.decode(branches, params), .kv = {}, .stats = session.stats()};
    for (Branch& branch : branches) {
      known_.add(branch);
      result.kv.push_back(test::kv_of(branch));
    }
    return result;
  }

  static void expect_same(const Result& got, const Result& expected) {
    test::expect_same(got.outs, expected.outs);
    for (std::size_t i = 0; i < expected.kv.size(); ++i) {
      EXPECT_TRUE(test::same_bits(got.kv[i], expected.kv[i])) << "branch " << i;
    }
    EXPECT_EQ(got.stats.tokens_computed, expected.stats.tokens_computed);
    const SpeculationStats& of = got.stats.speculation;
    EXPECT_EQ(got.stats.tokens_drafted,
              got.stats.tokens_accepted - of.tokens_shared + of.tokens_wasted);
  }

  void draft_what_comes(std::size_t length) {
    test::draft_by(engine_, [this, length](const ScriptedLane& lane, ScriptedDraft& draft) {
      draft.add_chain(-1, known_.after(lane, length));
    });
  }

  Engine engine_ = load();
  KnownTexts known_;
};

INSTANTIATE_TEST_SUITE_P(Devices, SharedDraftTest, ::testing::Values("", "sampling"));

TEST_P(SharedDraftTest, OnesThatGoTheSameWayTakeTheSameRows) {
  const DecodeParams greedy{.max_tokens = 41, .temperature = 0, .ignore_eos = true};
  const Result plain = decode(greedy, 4);
  draft_what_comes(9);
  const Result drafted = decode(scripted(greedy), 4);
  expect_same(drafted, plain);
  EXPECT_EQ(drafted.stats.tokens_accepted, 4 * 36);
  EXPECT_EQ(drafted.stats.tokens_drafted, 36);  // (ten tokens a step: the last one is plain)
  EXPECT_EQ(drafted.stats.speculation.tokens_shared, 3 * 36);
}

/// Each fork's own text is drafted for all of them: the union is one tree.
TEST_P(SharedDraftTest, EachGoesItsOwnWay) {
  const DecodeParams drawn{.max_tokens = 40, .temperature = 0.4, .ignore_eos = true};
  const Result plain = decode(drawn, 6);
  for (const std::size_t length : {1, 4, 12}) {
    draft_what_comes(length);
    const Result drafted = decode(scripted(drawn), 6);
    expect_same(drafted, plain);
    EXPECT_GT(drafted.stats.tokens_accepted, 6 * 15);
    EXPECT_GE(drafted.stats.speculation.tokens_shared, 0);
  }
}

/// What a fork draws may be on another's path alone.
TEST_P(SharedDraftTest, OnesWithoutADraftOfTheirOwnMayTakeAnothers) {
  const DecodeParams greedy{.max_tokens = 21, .temperature = 0, .ignore_eos = true};
  const Result plain = decode(greedy, 3);
  int asked = 0;
  test::draft_by(engine_, [&](const ScriptedLane& lane, ScriptedDraft& draft) {
    const std::span<const Token> right = known_.after(lane, 4);
    if (right.empty()) return;
    // In turns: one that is right, and one that is wrong.
    const bool is_right = asked++ % 2 == 0;
    draft.add_chain(-1, is_right ? right : std::span<const Token>(Tokens{(right[0] + 1) % 300}));
  });
  const Result drafted = decode(scripted(greedy), 3);
  expect_same(drafted, plain);
  EXPECT_GT(drafted.stats.speculation.tokens_shared, 20);
}

TEST_P(SharedDraftTest, UnderConstraintsEachHasItsOwn) {
  const DecodeParams drawn{.max_tokens = 40, .temperature = 0.4, .ignore_eos = true};
  const Result plain = decode(drawn, 4, true);
  draft_what_comes(6);
  const Result drafted = decode(scripted(drawn), 4, true);
  expect_same(drafted, plain);
  EXPECT_GT(drafted.stats.tokens_accepted, 4 * 20);
  EXPECT_EQ(drafted.stats.speculation.tokens_shared, 0);
  EXPECT_EQ(drafted.stats.speculation.fallbacks, 0);
}

/// Tokens that must follow need no draw, and no step where they were drafted.
TEST_P(SharedDraftTest, DraftsGoOnThroughForcedTokens) {
  DecodeParams drawn{.max_tokens = 60, .temperature = 1, .ignore_eos = true};
  drawn.constraint = Constraint::regex("(\\{\"x\": [0-9]\\}, ){20}");
  Session plain(engine_, {.seed = 7});
  Branch known = plain.prefill("list: ");
  const Generation expected = plain.decode(known, drawn);
  known_.add(known);
  draft_what_comes(16);
  Session session(engine_, {.seed = 7});
  Branch branch = session.prefill("list: ");
  const std::int64_t before = session.stats().steps;
  const Generation got = session.decode(branch, scripted(drawn));
  test::expect_same(std::vector{got}, std::vector{expected});
  // Runs of forced tokens are 9 of 10: a step that ended at the first of them would be one in ten.
  EXPECT_LE(session.stats().steps - before, 5);
  // And what must follow the last drafted token is drafted with it.
  draft_what_comes(1);
  Session again(engine_, {.seed = 7});
  Branch other = again.prefill("list: ");
  test::expect_same(std::vector{again.decode(other, scripted(drawn))}, std::vector{expected});
  EXPECT_GT(again.stats().speculation.accept_depth_by_position[3], 2);
}

}  // namespace
}  // namespace dendrite
