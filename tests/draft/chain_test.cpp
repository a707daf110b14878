// Drafts of a model, and whether they pay.
#include <gtest/gtest.h>

#include <cmath>

#include "draft/chain_drafter.h"
#include "draft/draft_purse.h"

namespace dendrite {
namespace {

ChosenToken sure(Token token, double p) {
  return {token, static_cast<float>(std::log(p)), {}};
}

constexpr DraftLimits kLimits{16, 16, 0.25};

TEST(ChainDrafterTest, ProposesWhatTheModelIsSureOf) {
  const ChainDrafter drafter;
  std::vector<ChosenToken> chain = {sure(1, 0.99), sure(2, 0.98), sure(3, 0.5), sure(4, 0.3)};
  chain[2].top = {{3, std::log(0.5F)}, {9, std::log(0.45F)}};
  const Draft draft = drafter.propose(chain, true, kLimits);
  ASSERT_EQ(draft.nodes.size(), 4U);  // the fourth is too unlikely by then
  EXPECT_EQ(draft.nodes[1].token, 2);
  EXPECT_EQ(draft.nodes[1].parent, 0);
  EXPECT_EQ(draft.nodes[2].token, 3);
  EXPECT_EQ(draft.nodes[3].token, 9);  // beside the third
  EXPECT_EQ(draft.nodes[3].parent, 1);
}

TEST(ChainDrafterTest, LearnsHowOftenTheSureAreRight) {
  ChainDrafter drafter;
  const std::vector<ChosenToken> chain = {sure(1, 0.99), sure(2, 0.4)};
  for (int i = 0; i < 100; ++i) {
    const Draft draft = drafter.propose(chain, true, {16, 16, 0});
    drafter.learn(draft, -1, -1);
  }
  EXPECT_TRUE(drafter.propose(chain, true, kLimits).nodes.empty());
  EXPECT_FALSE(drafter.propose(chain, false, kLimits).nodes.empty());  // of these it knows nothing
  for (int i = 0; i < 100; ++i) {
    const Draft draft = drafter.propose(chain, true, {16, 16, 0});
    drafter.learn(draft, -1, 0);
    drafter.learn(draft, 0, 1);
  }
  EXPECT_EQ(drafter.propose(chain, true, kLimits).nodes.size(), 2U);
}

TEST(ChainDrafterTest, LearnsHowFarChainsCome) {
  ChainDrafter drafter;
  EXPECT_EQ(drafter.taken_at(1), drafter.taken_at(9));
  for (int i = 0; i < 200; ++i) drafter.learn_length(8, 2, false);
  EXPECT_GT(drafter.taken_at(2), 0.9);
  EXPECT_LT(drafter.taken_at(3), 0.1);
  for (int i = 0; i < 200; ++i) drafter.learn_length(8, 2, true);  // ended there
  EXPECT_LT(drafter.taken_at(3), 0.1);
  EXPECT_GT(drafter.taken_at(1), 0.9);
}

/// Turns of an engine whose steps take `step_ms` and 2 % more for each row, of one lane.
struct Simulation {
  double draft_ms = 0;  // a token
  double comes = 0;     // the chance that a drafted token does
  std::int64_t unread = 0;
  ChainDrafter drafter{};
  DraftPurse purse{0.1};
  std::uint64_t random = 1;

  static constexpr double kStepMs = 10;
  static double step_ms(std::int64_t rows) {
    return kStepMs * (1 + 0.02 * static_cast<double>(rows - 1));
  }
  bool flip() {
    random = random * 6364136223846793005U + 1442695040888963407U;
    return static_cast<double>(random >> 11) * 0x1p-53 < comes;
  }

  /// Time by that of plain turns, of so many tokens.
  double run(std::int64_t tokens) {
    double ms = 0;
    std::int64_t made = 0;
    std::int64_t to_read = unread;
    while (made < tokens) {
      const DraftPurse::Turn turn{.lanes = 1,
                                  .most = 16,
                                  .ahead = tokens - made,
                                  .room_ms = 1e9,
                                  .taken = [&](std::int64_t i) { return drafter.taken_at(i); },
                                  .step_ms = [](std::int64_t rows) { return step_ms(rows); }};
      const std::int64_t length = purse.length(turn, to_read);
      ++made;
      if (length == 0) {
        ms += kStepMs;
        purse.record_plain(1, kStepMs);
        continue;
      }
      std::int64_t taken = 0;
      while (taken < length && flip()) ++taken;
      drafter.learn_length(length, taken, false);
      const double drafting =
          static_cast<double>(length) * draft_ms + static_cast<double>(to_read) * draft_ms / 8;
      const double all = drafting + step_ms(1 + length);
      purse.record({1, length, to_read, drafting, all, taken});
      to_read = 0;
      made += taken;
      ms += all;
    }
    return ms / (kStepMs * static_cast<double>(made));
  }
};

TEST(DraftPurseTest, LosesNextToNothing) {
  for (const double comes : {0.0, 0.1, 0.3}) {
    Simulation slow{.draft_ms = 10, .comes = comes};
    slow.run(100);
    EXPECT_LT(slow.run(4000), 1.02) << comes;
    Simulation quick{.draft_ms = 1, .comes = comes};
    quick.run(100);
    EXPECT_LT(quick.run(4000), 1.02) << comes;
  }
  Simulation itself{.draft_ms = 10, .comes = 1};
  EXPECT_LT(itself.run(4000), 1.02);
}

TEST(DraftPurseTest, FirstTriesAreFew) {
  Simulation wrong{.draft_ms = 1, .comes = 0, .unread = 128};
  EXPECT_LT(wrong.run(128), 1.08);
}

TEST(DraftPurseTest, GainsWhatThereIsToGain) {
  Simulation right{.draft_ms = 1, .comes = 1, .unread = 128};
  EXPECT_LT(right.run(256), 0.3);
  Simulation often{.draft_ms = 1, .comes = 0.8};
  EXPECT_LT(often.run(2000), 0.6);
}

TEST(DraftPurseTest, TriesAgain) {
  Simulation changing{.draft_ms = 1, .comes = 0};
  changing.run(2000);
  changing.comes = 0.95;
  changing.run(4000);
  EXPECT_LT(changing.run(2000), 0.5);
}

}  // namespace
}  // namespace dendrite
